package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// scope is the records of a conversation, or those of a tenant. The zero value has none.
type scope struct {
	prefix   []byte // of their keys in the file
	ofTenant bool
	pending  *overlay.Records // what the journal has and the file does not
	counts   records.Counts   // of all of them; see checkCounts
	uid      string           // of the conversation; only of reader.liveScope
}

// conversationScope returns the records of a conversation. e is its entry in the overlay; it may be nil. The
// conversation counts its records, with those in the journal; a caller that only writes may pass the zero value.
func conversationScope(tenant string, key layout.InnerKey, e *overlay.Entry, counts records.Counts) scope {
	s := scope{prefix: layout.ConversationScope(tenant, key), counts: counts}
	if e != nil {
		s.pending = e.Records
	}
	return s
}

// tenantRecords are the own records of a tenant.
type tenantRecords struct {
	scope

	tenant string
	state  layout.TenantRecords
	entry  *overlay.Entry // nil if the file has all operations
	values []pendingValue // of the scope, for a transaction; see txn.loadTenantRecords
}

// tenantRecords returns the own records of a tenant. Errors: overlay.ErrStale, store.ErrCorrupt.
func (r *reader) tenantRecords(tenant string) (*tenantRecords, error) {
	key := layout.TenantKey(tenant)
	t := &tenantRecords{scope: scope{prefix: layout.TenantScope(tenant), ofTenant: true}, tenant: tenant}
	e, err := r.entry(key)
	switch {
	case err != nil:
		return nil, err
	case e != nil:
		t.entry, t.pending, t.state = e, e.Records, e.Tenant
	case r.scopes != nil:
		value := r.scopes.Get(key)
		if t.state, err = layout.DecodeTenantRecords(key, value); err == nil && value == nil {
			err = r.checkNoRecords(t.scope)
		}
		if err != nil {
			return nil, fmt.Errorf("tenant %q: %w", tenant, err)
		}
	}
	t.counts = t.state.Counts
	return t, nil
}

// fileValue returns the value of a record in the file, or nil if there certainly is none.
func (r *reader) fileValue(s scope, key string) ([]byte, error) {
	if r.records == nil || s.prefix == nil {
		return nil, nil
	}
	at := append(bytes.Clone(s.prefix), key...)
	if value := r.records.Get(at); value != nil {
		return value, nil
	}
	return nil, r.checkAbsent(s, at)
}

// recordValue returns the value of a record, or nil if there is none. It is valid until the transaction ends or writes.
func (r *reader) recordValue(s scope, key string) ([]byte, error) {
	if p := s.pending.Get(key); p != nil {
		return r.pendingValue(s, p)
	}
	return r.fileValue(s, key)
}

// recordState returns what a decision needs to know of a record.
func (r *reader) recordState(s scope, key string) (records.State, error) {
	if p := s.pending.Get(key); p != nil {
		return p.State, nil
	}
	value, err := r.fileValue(s, key)
	if err != nil || value == nil {
		return records.State{}, err
	}
	return records.StateOf(key, value)
}

// editsCache keeps edits of operations in the journal by the index of the operation: the records of one operation may
// be far apart in the order of keys. The zero value is empty.
type editsCache struct {
	byIndex map[uint64][]record.OperationEdit
	bytes   int // of the operations
}

// add keeps edits of an operation of size bytes, and drops the others if the operations would exceed maxPendingBytes.
func (c *editsCache) add(index uint64, edits []record.OperationEdit, size int) {
	if c.byIndex == nil || c.bytes+size > maxPendingBytes {
		c.byIndex, c.bytes = map[uint64][]record.OperationEdit{}, 0
	}
	c.byIndex[index], c.bytes = edits, c.bytes+size
}

// operationInfo reads what an operation in the journal says without decoding its messages. The result shares the memory
// of encoded, which may be that of buffer. The error is store.ErrCorrupt.
func (r *reader) operationInfo(o overlay.Operation, buffer []byte) (
	op record.OperationInfo, encoded []byte, err error,
) {
	if encoded, err = r.journal.Read(o.Place, buffer); err != nil {
		return op, nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	if op, err = record.ReadOperationInfo(encoded); err != nil {
		return op, nil, fmt.Errorf("%w: operation %d of the journal: %w", store.ErrCorrupt, o.Index, err)
	}
	return op, encoded, nil
}

// pendingValue returns the value of a record that an operation in the journal writes, or nil if it deletes the record.
// If the operation cannot be read, the error is store.ErrCorrupt.
func (r *reader) pendingValue(s scope, p *overlay.Record) ([]byte, error) {
	if p.State.Revision == 0 {
		return nil, nil
	}
	edits, ok := r.edits.byIndex[p.Operation.Index]
	if !ok {
		op, encoded, err := r.operationInfo(p.Operation, nil)
		if err != nil {
			return nil, err
		}
		edits = op.Edits
		r.edits.add(p.Operation.Index, edits, len(encoded))
	}
	return valueOf(s, p, edits)
}

// valueOf returns the value of a record from the edits of its operation.
func valueOf(s scope, p *overlay.Record, edits []record.OperationEdit) ([]byte, error) {
	for _, e := range edits {
		if e.TenantScope == s.ofTenant && string(e.Key) == p.Key {
			return e.Value, nil
		}
	}
	return nil, fmt.Errorf("%w: operation %d of the journal lacks record %.128q", store.ErrCorrupt, p.Operation.Index,
		p.Key)
}

// pendingValue is a record that only the journal has; its value is nil if it is deleted.
type pendingValue struct {
	key   string
	value []byte
}

// pendingValues returns the records of a scope that only the journal has, in the order of their keys. It reads each
// operation once, and keeps no other bytes of it. The error is errUnreadable.
func (r *reader) pendingValues(of scope) ([]pendingValue, error) {
	pending := slices.AppendSeq(make([]*overlay.Record, 0, of.pending.Len()), of.pending.From(""))
	values := make([]pendingValue, len(pending))
	byOperation := make([]int, 0, len(pending))
	for i, p := range pending {
		values[i].key = p.Key
		if p.State.Revision != 0 {
			byOperation = append(byOperation, i)
		}
	}
	slices.SortFunc(byOperation, func(a, b int) int {
		return cmp.Compare(pending[a].Operation.Index, pending[b].Operation.Index)
	})
	var buffer []byte
	var op record.OperationInfo
	for n, i := range byOperation {
		p := pending[i]
		var err error
		if n == 0 || pending[byOperation[n-1]].Operation.Index != p.Operation.Index {
			op, buffer, err = r.operationInfo(p.Operation, buffer)
		}
		if err == nil {
			values[i].value, err = valueOf(of, p, op.Edits)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnreadable, err)
		}
		values[i].value = bytes.Clone(values[i].value)
	}
	return values, nil
}

// ascend implements records.Ascend. If records are missing, it sets r.err.
func (r *reader) ascend(s scope) records.Ascend {
	return func(from string) iter.Seq2[string, []byte] {
		inFile := func(yield func(string, []byte) bool) {
			if r.records == nil {
				return
			}
			r.checkStart(s, from)
			c := r.records.Cursor()
			k, v := seekFrom(c, s.prefix, []byte(from))
			for ; bytes.HasPrefix(k, s.prefix); k, v = c.Next() {
				if !yield(string(k[len(s.prefix):]), v) {
					return
				}
			}
			r.checkEnd(s, k, v, c.Next, ascending)
		}
		return r.merge(s, inFile, s.pending.From(from), strings.Compare)
	}
}

// descend implements records.Descend. If records are missing, it sets r.err.
func (r *reader) descend(s scope) records.Descend {
	return func(before string) iter.Seq2[string, []byte] {
		if before == "" {
			before = "\xff" // It is after all keys, which are valid UTF-8.
		}
		inFile := func(yield func(string, []byte) bool) {
			if r.records == nil {
				return
			}
			r.checkStart(s, before)
			c := r.records.Cursor()
			k, v := seekBelow(c, s.prefix, []byte(before))
			for ; bytes.HasPrefix(k, s.prefix); k, v = c.Prev() {
				if !yield(string(k[len(s.prefix):]), v) {
					return
				}
			}
			r.checkEnd(s, k, v, c.Prev, descending)
		}
		pending := func(yield func(*overlay.Record) bool) {
			for p := range s.pending.Back(before) {
				if p.Key != before && !yield(p) {
					return
				}
			}
		}
		return r.merge(s, inFile, pending, func(a, b string) int { return strings.Compare(b, a) })
	}
}

// merge yields the keys and values of a scope, from those in the file and those in the journal, both in the order of
// compare. If an operation in the journal cannot be read, merge ends after a record without a value, and sets r.err.
func (r *reader) merge(
	s scope, inFile iter.Seq2[string, []byte], pending iter.Seq[*overlay.Record], compare func(a, b string) int,
) iter.Seq2[string, []byte] {
	if s.pending.Len() == 0 {
		return inFile
	}
	return func(yield func(string, []byte) bool) {
		next, stop := iter.Pull(pending)
		defer stop()
		p, more := next()
		// yieldPending yields the pending records before a key, or all if last is set. It drops the one with that key.
		yieldPending := func(key string, last bool) (replaced, ok bool) {
			for ; more && (last || compare(p.Key, key) <= 0); p, more = next() {
				replaced = !last && p.Key == key
				value, err := r.pendingValue(s, p)
				if err != nil {
					r.err = err
					yield(p.Key, nil)
					return false, false
				}
				if value != nil && !yield(p.Key, value) {
					return false, false
				}
			}
			return replaced, true
		}
		for key, value := range inFile {
			replaced, ok := yieldPending(key, false)
			if !ok || !replaced && !yield(key, value) {
				return
			}
		}
		yieldPending("", true)
	}
}

// countRecords returns the counts of the records of a scope, as far as they can be read. It reads no operation.
func (r *reader) countRecords(of scope) (sum records.Counts) {
	if r.records != nil {
		c := r.records.Cursor()
		for k, value := c.Seek(of.prefix); bytes.HasPrefix(k, of.prefix); k, value = c.Next() {
			key := string(k[len(of.prefix):])
			if of.pending.Get(key) != nil {
				continue
			}
			if s, err := records.StateOf(key, value); err == nil {
				sum = sum.Plus(s.Counts)
			}
		}
	}
	for p := range of.pending.From("") {
		sum = sum.Plus(p.State.Counts)
	}
	return sum
}

// liveScope returns the records of a conversation that exists and has not expired, or those of the tenant if id is
// empty. Errors: store.ErrNotFound, store.ErrCorrupt, overlay.ErrStale.
func (r *reader) liveScope(tenant, id string, now time.Time, states record.EphemeralStates) (scope, error) {
	if id == "" {
		own, err := r.tenantRecords(tenant)
		if err != nil {
			return scope{}, err
		}
		return own.scope, nil
	}
	f, err := r.find(tenant, id, head)
	if err != nil {
		return scope{}, err
	}
	if f.record.Expired(now, states.Of(id)) {
		return scope{}, store.ErrNotFound
	}
	of := conversationScope(tenant, f.place.Key, f.pending, f.record.RecordCounts())
	of.uid = f.record.Conversation().GetUid()
	return of, nil
}

// readRecords runs read with the records of a conversation, or those of the tenant if id is empty, all of one instant.
func (s *Store) readRecords(
	ctx context.Context, tenant, id string, now time.Time, read func(*reader, scope) error,
) error {
	mayHaveEphemeral := s.tally.mayHaveEphemeral()
	return s.read(ctx, func(tx *bolt.Tx, r *reader) error {
		of, err := r.liveScope(tenant, id, now, readStates(tx, s.tally.epoch, mayHaveEphemeral, tenant))
		if err != nil {
			return err
		}
		err = read(r, of)
		return cmp.Or(r.err, err)
	})
}

// recordsError returns an error with the conversation whose records it is about. An empty id is that of the tenant.
func recordsError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case id == "":
		return fmt.Errorf("records of the tenant: %w", err)
	}
	return fmt.Errorf("conversation %q: %w", id, err)
}

// GetRecords implements store.Store.
func (s *Store) GetRecords(
	ctx context.Context, g *store.GetRecords,
) (found store.RecordFrames, omitted []string, err error) {
	if len(g.Keys) == 1 && !records.IsHidden(g.Keys[0]) {
		found, err = s.getRecord(ctx, g)
	} else {
		now := s.options.Now()
		err = s.readRecords(ctx, g.Tenant, g.ConversationID, now, func(r *reader, of scope) (err error) {
			found, omitted, err = records.Get(g, now, func(key string) ([]byte, error) { return r.recordValue(of, key) })
			return err
		})
	}
	if err != nil {
		return nil, nil, recordsError(g.ConversationID, err)
	}
	return found, omitted, nil
}

// ListRecords implements store.Store.
func (s *Store) ListRecords(
	ctx context.Context, l *store.ListRecords,
) (found []*parleyv1.Record, more bool, err error) {
	now := s.options.Now()
	err = s.readRecords(ctx, l.Tenant, l.ConversationID, now, func(r *reader, of scope) (err error) {
		found, more, err = records.List(l, now, r.ascend(of), r.descend(of))
		return err
	})
	if err != nil {
		return nil, false, recordsError(l.ConversationID, err)
	}
	return found, more, nil
}
