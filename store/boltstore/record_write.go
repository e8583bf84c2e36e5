package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Limits of records in transactions and in the journal.
const (
	// maxJournaledRecords is the maximum size of the records of one operation in the journal, in bytes. Larger ones are
	// written in a transaction, so that they are not written twice.
	maxJournaledRecords = 64 << 10
	// maxPending and maxPendingBytes are the maximum number and size of the records of one scope that only the journal
	// has: a transaction folds all records of a scope, and appends wait for it.
	maxPending, maxPendingBytes = 4096, 4 << 20
)

// WriteRecords implements store.Store.
func (s *Store) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if w.ConversationID == "" {
		written, err := s.writeTenantRecords(ctx, w)
		return written, recordsError("", err)
	}
	a := record.AppendOf(w)
	out, err := s.append(ctx, a)
	if err != nil {
		return nil, err
	}
	return record.Written(out), nil
}

// recordsSize returns about how many bytes writes of records take in memory.
func recordsSize(writes []*parleyv1.RecordWrite) (size int) {
	for _, w := range writes {
		size += proto.Size(w)
	}
	return size
}

// writeTenantRecords makes the writer apply a write of records of a tenant alone.
func (s *Store) writeTenantRecords(
	ctx context.Context, w *store.WriteRecords,
) (written *store.WrittenRecords, err error) {
	if n := len(w.Tenant); n > layout.MaxNames {
		return nil, fmt.Errorf("tenant is %d bytes long, %d at most", n, layout.MaxNames)
	}
	op := &operation{
		ctx: ctx, tenant: w.Tenant, size: recordsSize(w.Writes), conversation: string(layout.IDKey(w.Tenant, "")),
	}
	op.log = func(t *txn) (err error) {
		written, err = t.logTenantRecords(w, s.options.Now())
		return err
	}
	op.apply = func(t *txn) (err error) {
		written, err = t.applyTenantRecords(w, s.options.Now())
		return err
	}
	if err := s.countCorrupt(s.writer.await(op)); err != nil {
		return nil, err
	}
	return written, nil
}

// decideTenantRecords decides a write of records of a tenant alone.
func (t *txn) decideTenantRecords(
	w *store.WriteRecords, own *tenantRecords, now time.Time,
) (*store.WrittenRecords, *records.Edits, error) {
	in, err := t.recordInput(w.Writes, scope{}, own, true)
	if err != nil {
		return nil, nil, err
	}
	var first []byte
	if w.Request != nil {
		key := records.RequestKey(w.Request)
		if p := own.pending.Get(key); p != nil && p.Operation.Place == (journal.Place{}) {
			return nil, nil, errNotJournaled // The same batch has the first call.
		}
		if first, err = t.recordValue(own.scope, key); err != nil {
			return nil, nil, err
		}
	}
	written, edits, err := records.WriteTenant(w, in, first, now)
	if err != nil || !edits.Any() {
		return written, nil, err
	}
	if !w.OnlyRemoves() {
		if err := errors.Join(t.checkSpace(editSize(edits)), t.checkBytes(w.Tenant, edits.Tenant.Bytes)); err != nil {
			return nil, nil, err
		}
	}
	return written, edits, nil
}

// editSize returns the size of the values of edits in bytes.
func editSize(edits *records.Edits) (size int) {
	if edits != nil {
		for _, e := range edits.All {
			size += len(e.Value)
		}
	}
	return size
}

// applyTenantRecords decides and writes a write of records of a tenant alone.
func (t *txn) applyTenantRecords(w *store.WriteRecords, now time.Time) (*store.WrittenRecords, error) {
	own, err := t.loadTenantRecords(w.Tenant)
	if err != nil {
		return nil, err
	}
	written, edits, err := t.decideTenantRecords(w, own, now)
	if err == nil && edits.Any() {
		t.editRecords(scope{}, own, edits)
		t.noteEdits(w.Tenant, nil, edits)
	}
	return written, err
}

// logTenantRecords decides a write of records of a tenant alone for the journal. The error is errNotJournaled, or that
// of the write.
func (t *txn) logTenantRecords(w *store.WriteRecords, now time.Time) (*store.WrittenRecords, error) {
	own, err := t.tenantRecords(w.Tenant)
	if err != nil || !t.mayJournal(w.Writes, scope{}, own, true) {
		return nil, errNotJournaled
	}
	written, edits, err := t.decideTenantRecords(w, own, now)
	if err != nil || !edits.Any() {
		return written, err
	}
	payload, err := proto.Marshal(record.NewTenantOperation(w.Tenant, edits, now))
	if err != nil {
		return nil, fmt.Errorf("encode operation: %w", err)
	}
	l := journaledOperation{tenant: w.Tenant, payload: payload}
	t.logEdits(&l, overlay.Entry{}, nil, own, edits)
	t.log(l)
	return written, nil
}

// recordInput looks up what a decision about writes of records needs. of is the scope of the conversation, own that of
// the tenant; it may be nil if no write is of the tenant's records. If tenantOnly is true, all are.
func (t *txn) recordInput(
	writes []*parleyv1.RecordWrite, of scope, own *tenantRecords, tenantOnly bool,
) (*records.Input, error) {
	var tenant records.Tenant
	if own != nil {
		tenant = records.Tenant{
			Revision: own.state.Revision, Bytes: own.state.Counts.Bytes,
			Limit: t.options.Limits(own.tenant).MaxRecordBytes,
		}
	}
	return records.NewInput(writes, tenantOnly, tenant, func(tenantScope bool, key string) (records.State, error) {
		if tenantScope {
			return t.recordState(own.scope, key)
		}
		return t.recordState(of, key)
	})
}

// mayJournal reports whether the journal can take writes of records. The first write of a record in the file, and the
// first of a tenant, must be transactions: so older versions refuse the file, and the file names all tenants.
func (t *txn) mayJournal(writes []*parleyv1.RecordWrite, of scope, own *tenantRecords, tenantOnly bool) bool {
	if len(writes) == 0 {
		return true
	}
	size := recordsSize(writes)
	fits := func(s scope) bool {
		return s.pending.Len()+len(writes) < maxPending && s.pending.Bytes()+int64(size) <= maxPendingBytes
	}
	if t.records == nil || size > maxJournaledRecords || !fits(of) {
		return false
	}
	if !tenantOnly && !records.HasTenantScope(writes) {
		return true
	}
	return fits(own.scope) && t.tenants.Get(layout.TenantKey(own.tenant)) != nil
}

// nextIndex returns the index of the next operation of the batch that is being decided.
func (t *txn) nextIndex() uint64 { return t.tally.journalEntry.Through + 1 + uint64(len(t.logged)) }

// log adds a decided operation to the batch.
func (t *txn) log(l journaledOperation) {
	t.logged = append(t.logged, l)
	t.writtenBytes += len(l.payload)
	t.addCounts(l.tenant, l.counts)
}

// logEdits adds edits of records to an operation for the journal. old is the entry of the conversation before it; the
// zero value if there is none. c and own may be nil if no edit is of the conversation's records, or of the tenant's.
// Later operations of the batch build on the result.
func (t *txn) logEdits(
	l *journaledOperation, old overlay.Entry, c *parleyv1.Conversation, own *tenantRecords, edits *records.Edits,
) {
	l.entry.Records = old.Records
	if edits == nil {
		return
	}
	t.noteEdits(l.tenant, c, edits)
	var ofConversation, ofTenant []*overlay.Record
	for _, e := range edits.All {
		r := &overlay.Record{Key: e.Key, State: e.After}
		l.records = append(l.records, r)
		if e.TenantScope {
			ofTenant = append(ofTenant, r)
		} else {
			ofConversation = append(ofConversation, r)
		}
	}
	l.entry.Records = old.Records.With(ofConversation...)
	l.entry.Counts = l.entry.Counts.Plus(layout.OfRecords(edits.Conversation))
	l.counts = l.counts.Plus(layout.OfRecords(edits.Conversation)).Plus(layout.OfRecords(edits.Tenant))
	if len(ofTenant) == 0 {
		return
	}
	l.ofTenant = &overlay.Entry{Counts: layout.OfRecords(edits.Tenant), Records: own.pending.With(ofTenant...)}
	if own.entry != nil {
		l.ofTenant.Counts = l.ofTenant.Counts.Plus(own.entry.Counts)
	}
	l.ofTenant.Tenant = layout.TenantRecords{
		Revision: max(own.state.Revision, edits.TenantRevision), Counts: own.state.Counts.Plus(edits.Tenant),
		Applied: t.nextIndex(),
	}
	t.staged[string(layout.TenantKey(l.tenant))] = l.ofTenant
}

// loadTenantRecords returns the own records of a tenant, so that the transaction can fold them.
func (t *txn) loadTenantRecords(tenant string) (own *tenantRecords, err error) {
	err = t.tally.guard.Do(func() error {
		if own, err = t.tenantRecords(tenant); err == nil {
			own.values, err = t.pendingValues(own.scope)
		}
		return err
	})
	return own, err
}

// foldTenantRecords writes the own records of a tenant that only the journal has to the file.
func (t *txn) foldTenantRecords(own *tenantRecords) {
	if own.entry == nil {
		return
	}
	key := layout.TenantKey(own.tenant)
	t.dropEntry(own.tenant, string(key), own.entry)
	own.entry, own.pending = nil, nil
	t.putRecords(own.scope, own.values)
	t.put(t.scopes, key, own.state.Encode(key))
}

// editRecords makes edits of records. of is the scope of the conversation; its records that only the journal has must
// be in the file. own is that of the tenant; it may be nil if no edit is of the tenant's records.
func (t *txn) editRecords(of scope, own *tenantRecords, edits *records.Edits) {
	if !edits.Any() {
		return
	}
	t.makeRecordBuckets()
	if t.err != nil {
		return
	}
	var ofConversation, ofTenant []pendingValue
	for _, e := range edits.All {
		if e.TenantScope {
			ofTenant = append(ofTenant, pendingValue{e.Key, e.Value})
		} else {
			ofConversation = append(ofConversation, pendingValue{e.Key, e.Value})
		}
	}
	t.putRecords(of, ofConversation)
	if len(ofTenant) == 0 {
		return
	}
	t.foldTenantRecords(own)
	t.putRecords(own.scope, ofTenant)
	own.state.Revision = max(own.state.Revision, edits.TenantRevision)
	t.addTenantRecords(own, edits.Tenant)
}

// addTenantRecords writes the changed state of the own records of a tenant, which are folded.
func (t *txn) addTenantRecords(own *tenantRecords, change records.Counts) {
	own.state.Counts = own.state.Counts.Plus(change)
	key := layout.TenantKey(own.tenant)
	t.put(t.scopes, key, own.state.Encode(key))
	t.addCounts(own.tenant, layout.OfRecords(change))
}

// makeRecordBuckets makes the buckets for records in a file that has none.
func (t *txn) makeRecordBuckets() {
	if t.records == nil {
		tx := t.meta.Tx()
		t.mutations++
		t.fail(boltfile.MakeRecordBuckets(tx))
		t.openRecordBuckets(tx)
	}
}

func (t *txn) openRecordBuckets(tx *bolt.Tx) {
	bucket := func(name string) *bolt.Bucket { return tx.Bucket([]byte(name)) }
	t.records, t.scopes = bucket(layout.RecordsBucket), bucket(layout.ScopesBucket)
	t.recordEnds, t.orphans = bucket(layout.RecordEndsBucket), bucket(layout.OrphansBucket)
	t.chunks = bucket(layout.ChunksBucket)
}

// putRecords writes and deletes records in the file, and keeps the entries in recordends of those of a tenant.
func (t *txn) putRecords(of scope, values []pendingValue) {
	for _, p := range values {
		key := append(bytes.Clone(of.prefix), p.key...)
		if of.ofTenant {
			t.moveRecordEnd(p, t.records.Get(key), key)
		}
		if p.value != nil {
			t.put(t.records, key, p.value)
		} else {
			t.del(t.records, key)
		}
	}
}

// moveRecordEnd changes the entry in recordends of a tenant's record whose value before is old. If old is damaged, its
// entry is left to the sweep.
func (t *txn) moveRecordEnd(p pendingValue, old, key []byte) {
	tenant, _, _ := layout.CutTenant(key)
	end := func(value []byte) (ns int64, ok bool) {
		s, err := records.StateOf(p.key, value)
		if err != nil || s.ExpireTime.IsZero() {
			return 0, false
		}
		return layout.Nanosecond(s.ExpireTime), true
	}
	if ns, ok := end(old); ok {
		t.del(t.recordEnds, layout.RecordEndKey(ns, tenant, p.key))
	}
	if ns, ok := end(p.value); ok {
		entry := layout.RecordEndKey(ns, tenant, p.key)
		t.put(t.recordEnds, entry, layout.EncodeDue(entry, ns))
	}
}

// recordsToCopy returns what a create copies. If there is no such conversation, or no id, that is nothing.
func (t *txn) recordsToCopy(c *store.Create, now time.Time) (copied scope, err error) {
	if c.RecordsOf == "" {
		return copied, nil
	}
	source, err := t.load(c.Tenant, c.RecordsOf, head)
	if err != nil {
		return copied, err
	}
	r := source.live(now)
	switch {
	case c.RecordsOfUID != "" && (r == nil || r.Conversation().GetUid() != c.RecordsOfUID):
		return copied, store.ErrNotFound
	case r == nil:
		return copied, nil
	}
	return source.scope(), nil
}

// copyRecords returns the edits that write a copy of records. If they are not as many or as large as their conversation
// counts, the error is store.ErrCorrupt.
func (t *txn) copyRecords(of scope, now time.Time) (*records.Edits, error) {
	edits := &records.Edits{Revision: 1}
	for key, value := range t.ascend(of)("") {
		edit := records.Edit{Key: key}
		var err error
		if edit.Value, edit.After, err = records.Copy(key, value, edits.Revision, now); err != nil {
			err, t.reader.err = cmp.Or(t.reader.err, err), nil // Other operations of the transaction continue.
			return nil, err
		}
		edits.Add(edit)
	}
	t.reader.err = nil // Missing records are an error below.
	if got := edits.Conversation; got != of.counts {
		return nil, fmt.Errorf("%w: conversation with %d records of %d bytes that counts %d of %d", store.ErrCorrupt,
			got.Records, got.RecordBytes, of.counts.Records, of.counts.RecordBytes)
	}
	return edits, nil
}
