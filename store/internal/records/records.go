// Package records decides what a batch of writes does to records, encodes records, and builds the results of reads of
// them, for stores that keep each record as a value under its key. It is pure: it reads no clock and does no I/O.
//
// A store looks up the [State] of each record that a batch writes, see [NewInput]. For a batch with a conversation it
// passes them to package record, for a batch of a tenant alone to [WriteTenant]. The result contains [Edits]: the store
// puts and deletes their values and adds their counts. [List], [Get] and [WithPrefixes] build the results of reads.
// Start at [Edits].
package records

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// State is what a decision needs to know of a stored record. The zero value means that there is none.
type State struct {
	// Revision of the record, at least 1.
	Revision int64
	// Counts is what the record adds to the counts.
	Counts Counts
	// ExpireTime of the record; the zero time if it does not expire.
	ExpireTime time.Time
}

// Live reports whether the record exists and has not expired at this time.
func (s State) Live(now time.Time) bool { return s.Revision != 0 && !s.Expired(now) }

// Expired reports whether the record exists and has expired at this time.
func (s State) Expired(now time.Time) bool {
	return !s.ExpireTime.IsZero() && !now.Before(s.ExpireTime)
}

// Counts are numbers of records and sizes in bytes, or by how much they change.
type Counts struct {
	// Records is the number of records and RecordBytes their size; see store.RecordBytes. They do not include the
	// requests of a tenant.
	Records, RecordBytes int64
	// Bytes is the size that counts towards the limit of a tenant. It includes the requests of the tenant.
	Bytes int64
}

// Of returns the counts of n records with that size.
func Of(n, recordBytes int64) Counts {
	return Counts{Records: n, RecordBytes: recordBytes, Bytes: recordBytes}
}

// Plus returns the sums of the counts.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Records + d.Records, c.RecordBytes + d.RecordBytes, c.Bytes + d.Bytes}
}

// Minus returns the differences of the counts.
func (c Counts) Minus(d Counts) Counts {
	return Counts{c.Records - d.Records, c.RecordBytes - d.RecordBytes, c.Bytes - d.Bytes}
}

// Edit writes or deletes the value of one record.
type Edit struct {
	// TenantScope is true for a record of the tenant.
	TenantScope bool
	// Key of the record, or a key that IsHidden.
	Key string
	// Value is the encoded record; nil if the record is deleted.
	Value []byte
	// Before is the record that the edit replaces or deletes, and After the record that it writes. A Before may have
	// expired: the store still has it.
	Before, After State
}

// Edits are all that a write does to records. A nil *Edits changes nothing.
type Edits struct {
	// All edits, in the order of the writes, of different records.
	All []Edit
	// Revision of the edited records of the conversation; 0 if there are none.
	Revision int64
	// TenantRevision is the same for those of the tenant. The counter of the tenant has this value after the write; if
	// it is 0, the counter does not change.
	TenantRevision int64
	// Conversation and Tenant are by how much the counts of the two scopes change.
	Conversation, Tenant Counts
}

// Any reports whether there is an edit.
func (e *Edits) Any() bool { return e != nil && len(e.All) > 0 }

// Revisions returns Revision and TenantRevision.
func (e *Edits) Revisions() (revision, tenantRevision int64) {
	if e == nil {
		return 0, 0
	}
	return e.Revision, e.TenantRevision
}

// Bytes returns by how much the bytes of the tenant change, those of both scopes.
func (e *Edits) Bytes() int64 {
	if e == nil {
		return 0
	}
	return e.Conversation.Bytes + e.Tenant.Bytes
}

// Add adds an edit and its counts.
func (e *Edits) Add(edit Edit) {
	change := edit.After.Counts.Minus(edit.Before.Counts)
	if edit.TenantScope {
		e.Tenant = e.Tenant.Plus(change)
	} else {
		e.Conversation = e.Conversation.Plus(change)
	}
	e.All = append(e.All, edit)
}

// Input is what a store looks up for a decision. See [NewInput].
type Input struct {
	// Before has the state of the record of each write.
	Before []State
	// Tenant is the tenant of the writes. It may be the zero value if no write is of the tenant's records.
	Tenant Tenant
	// Decided, if not nil, is the result of an earlier decision of the same write, which is applied again after a
	// restart. The other fields are then not used, and of Decided only the revisions and counts.
	Decided *Edits
}

// Tenant is the tenant of a batch.
type Tenant struct {
	// Revision is the counter of the tenant.
	Revision int64
	// Bytes is the size of its own records and requests before the write, and Limit the maximum; 0 means no limit.
	Bytes, Limit int64
}

// checkFull returns a store.RecordsFullError if records and requests of the tenant grow by delta bytes and would exceed
// the limit.
func (t Tenant) checkFull(delta int64) error {
	if t.Limit == 0 || delta <= 0 || t.Bytes+delta <= t.Limit {
		return nil
	}
	return &store.RecordsFullError{TenantScope: true, Bytes: t.Bytes + delta, Limit: t.Limit}
}

// NewInput returns the input of a decision about writes; nil if there are none. state looks up the state of a record.
// If tenantOnly is true, all writes are of the tenant's records.
func NewInput(
	writes []*parleyv1.RecordWrite, tenantOnly bool, tenant Tenant,
	state func(tenantScope bool, key string) (State, error),
) (*Input, error) {
	if len(writes) == 0 {
		return nil, nil //nolint:nilnil // A write without records needs no input.
	}
	in := &Input{Before: make([]State, len(writes)), Tenant: tenant}
	for i, w := range writes {
		var err error
		if in.Before[i], err = state(tenantOnly || w.GetTenantScope(), w.GetKey()); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// HasTenantScope reports whether a write is of the tenant's records.
func HasTenantScope(writes []*parleyv1.RecordWrite) bool {
	for _, w := range writes {
		if w.GetTenantScope() {
			return true
		}
	}
	return false
}

// Conversation is the conversation of a batch.
type Conversation struct {
	// Revision is the version of the conversation after the write.
	Revision int64
	// Time of the write.
	Time time.Time
	// Bytes is the size of its records before the write, and Limit the maximum.
	Bytes, Limit int64
}

// Decide decides a batch of writes. c is the conversation; if nil, all writes are of the tenant's records, and the
// caller checks their size. now is the time of the write for the tenant's records. Errors: store.RevisionError,
// store.RecordsFullError.
func Decide(writes []*parleyv1.RecordWrite, in *Input, c *Conversation, now time.Time) (*Edits, error) {
	edits := new(Edits)
	for i, w := range writes {
		before, tenantScope := in.Before[i], c == nil || w.GetTenantScope()
		current := int64(0)
		if before.Live(now) {
			current = before.Revision
		}
		if w.IfRevision != nil && w.GetIfRevision() != current {
			return nil, &store.RevisionError{
				Key: w.GetKey(), TenantScope: tenantScope, Current: current, Required: w.GetIfRevision(),
			}
		}
		if w.GetDelete() && current == 0 {
			continue // An expired record is left to the sweep.
		}
		edit := Edit{TenantScope: tenantScope, Key: w.GetKey(), Before: before}
		if tenantScope {
			edits.TenantRevision = in.Tenant.Revision + 1
		} else {
			edits.Revision = c.Revision
		}
		if !w.GetDelete() {
			if err := edit.put(edits.written(w, tenantScope, c, now)); err != nil {
				return nil, err
			}
		}
		edits.Add(edit)
	}
	if c == nil {
		return edits, nil
	}
	err := CheckFull(c.Bytes, edits.Conversation.RecordBytes, c.Limit)
	if err == nil {
		err = in.Tenant.checkFull(edits.Tenant.Bytes)
	}
	if err != nil {
		return nil, err
	}
	return edits, nil
}

// written returns the record that a write makes.
func (e *Edits) written(w *parleyv1.RecordWrite, tenantScope bool, c *Conversation, now time.Time) *parleyv1.Record {
	r := &parleyv1.Record{Key: w.GetKey(), Value: w.GetValue(), MediaType: w.GetMediaType(), Labels: w.GetLabels()}
	if !tenantScope {
		r.Revision, r.UpdateTime = e.Revision, timestamppb.New(c.Time)
		return r
	}
	r.Revision, r.UpdateTime = e.TenantRevision, timestamppb.New(now)
	if w.GetTtl() != nil {
		r.ExpireTime = timestamppb.New(now.Add(w.GetTtl().AsDuration()))
	}
	return r
}

// CheckFull returns a store.RecordsFullError if the records of a conversation grow by delta bytes and would exceed
// limit.
func CheckFull(present, delta, limit int64) error {
	if delta <= 0 || present+delta <= limit {
		return nil
	}
	return &store.RecordsFullError{Bytes: present + delta, Limit: limit}
}

// Imported returns the edits that write records of a new conversation, whose version is the revision. It returns nil
// without records.
func Imported(all []*parleyv1.Record, revision int64, now time.Time, limit int64) (*Edits, error) {
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // A nil *Edits changes nothing.
	}
	edits := &Edits{Revision: revision}
	for _, in := range all {
		r := &parleyv1.Record{
			Key: in.GetKey(), Value: in.GetValue(), MediaType: in.GetMediaType(), Labels: in.GetLabels(),
			Revision: revision, UpdateTime: timestamppb.New(now),
		}
		edit := Edit{Key: r.GetKey()}
		if err := edit.put(r); err != nil {
			return nil, err
		}
		edits.Add(edit)
	}
	if err := CheckFull(0, edits.Conversation.RecordBytes, limit); err != nil {
		return nil, err
	}
	return edits, nil
}

// put makes r the record that the edit writes.
func (e *Edit) put(r *parleyv1.Record) (err error) {
	e.After = stateOf(r)
	e.Value, err = Marshal(r)
	return err
}
