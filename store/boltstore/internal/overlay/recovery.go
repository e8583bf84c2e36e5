package overlay

import (
	"maps"
	"slices"

	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Recovery collects the operations of a journal after a restart, by conversation and by tenant. The zero value has
// none.
type Recovery struct {
	conversations map[string]*Recovered
	tenants       map[string]*Recovered
}

// Recovered is what the journal has about a conversation, or about the records of a tenant.
type Recovered struct {
	// Key is layout.ConversationKey or layout.TenantKey.
	Key string
	// Tenant of the conversation or of the records.
	Tenant string
	// UID of the conversation. Operations of an earlier conversation with the same key were dropped: it was deleted.
	UID string
	// Turns is true if an operation begins or ends a turn.
	Turns bool

	operations []recoveredOperation
}

// recoveredOperation is what an operation does to a conversation, or to the records of a tenant.
type recoveredOperation struct {
	Operation

	bytes    int           // in the journal
	counts   layout.Counts // by how much it changes those of the tenant
	turn     TurnChange
	records  []*Record
	revision int64          // of the records of the tenant
	own      records.Counts // by how much it changes those of the records of the tenant
}

// Any reports whether there is an operation.
func (r *Recovery) Any() bool { return len(r.conversations)+len(r.tenants) > 0 }

// Conversations returns what the journal has about conversations, in the order of their keys.
func (r *Recovery) Conversations() []*Recovered { return inOrder(r.conversations) }

// Tenants returns what the journal has about the records of tenants.
func (r *Recovery) Tenants() []*Recovered { return inOrder(r.tenants) }

func inOrder(all map[string]*Recovered) []*Recovered {
	ordered := make([]*Recovered, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		ordered = append(ordered, all[key])
	}
	return ordered
}

// Collect adds an operation. It returns an error if the operation cannot be decoded.
func (r *Recovery) Collect(o journal.Operation) error {
	op, err := record.ReadOperationInfo(o.Bytes)
	if err != nil {
		return err
	}
	next := recoveredOperation{Operation: Operation{Index: o.Index, Place: o.Place}, bytes: o.Place.Length()}
	ofConversation, ofTenant, err := next.recordsOf(op.Edits)
	if err != nil {
		return err
	}
	if r.conversations == nil {
		r.conversations, r.tenants = map[string]*Recovered{}, map[string]*Recovered{}
	}
	tenant := string(op.Tenant)
	if len(op.Key) > 0 {
		ofThis := next
		ofThis.turn = TurnChange{Begun: op.Begun, Ended: op.Ended}
		ofThis.records, ofThis.counts = ofConversation, layout.OfRecords(op.ConversationRecords)
		ofThis.counts = ofThis.counts.Plus(layout.Counts{Messages: op.MessagesAdded, Bytes: op.BytesAdded})
		key := string(layout.ConversationKey(tenant, layout.InnerKey(op.Key)))
		if r.conversations[key] != nil && r.conversations[key].UID != string(op.UID) {
			delete(r.conversations, key)
		}
		c := of(r.conversations, key, tenant)
		c.UID, c.Turns = string(op.UID), c.Turns || op.Turn
		c.operations = append(c.operations, ofThis)
		next.bytes = 0 // The operation counts once.
	}
	if len(ofTenant) > 0 {
		next.records, next.counts = ofTenant, layout.OfRecords(op.TenantRecords)
		next.revision, next.own = op.TenantRevision, op.TenantRecords
		t := of(r.tenants, string(layout.TenantKey(tenant)), tenant)
		t.operations = append(t.operations, next)
	}
	return nil
}

// of returns the element of a map with that key. It adds one if there is none.
func of(all map[string]*Recovered, key, tenant string) *Recovered {
	if all[key] == nil {
		all[key] = &Recovered{Key: key, Tenant: tenant}
	}
	return all[key]
}

// recordsOf returns the records that an operation edits, by their scope.
func (o recoveredOperation) recordsOf(edits []record.OperationEdit) (ofConversation, ofTenant []*Record, err error) {
	for _, e := range edits {
		r := &Record{Key: string(e.Key), Operation: o.Operation}
		if len(e.Value) > 0 {
			if r.State, err = records.StateOf(r.Key, e.Value); err != nil {
				return nil, nil, err
			}
		}
		if e.TenantScope {
			ofTenant = append(ofTenant, r)
		} else {
			ofConversation = append(ofConversation, r)
		}
	}
	return ofConversation, ofTenant, nil
}

// Pending is an entry to put, with its operations and their size in the journal in bytes.
type Pending struct {
	Entry      Entry
	Operations []Operation
	Bytes      int
	// Turns are for PutTurn, in order.
	Turns []TurnChange
}

// Pending returns the entry of the operations after that index, which the file contains. own is the state of the
// tenant's records in the file; the zero value for a conversation. The bool is false if there are no such operations.
func (r *Recovered) Pending(applied uint64, own layout.TenantRecords) (p Pending, ok bool) {
	p.Entry.Tenant = own
	for _, o := range r.operations {
		if o.Index <= applied {
			continue
		}
		ok, p.Bytes = true, p.Bytes+o.bytes
		p.Entry.Counts, p.Entry.Records = p.Entry.Counts.Plus(o.counts), p.Entry.Records.With(o.records...)
		if r.UID != "" {
			p.Operations = append(p.Operations, o.Operation)
			if o.turn != (TurnChange{}) {
				p.Turns = append(p.Turns, o.turn)
			}
			continue
		}
		p.Entry.Tenant.Revision = max(p.Entry.Tenant.Revision, o.revision)
		p.Entry.Tenant.Counts, p.Entry.Tenant.Applied = p.Entry.Tenant.Counts.Plus(o.own), o.Index
	}
	return p, ok
}
