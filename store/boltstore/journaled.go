package boltstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// openJournal opens the journal if the store should use one or the file needs one, and puts the operations that the
// file does not contain into tally.pending. If readOnly is true, it changes no file.
func (s *Store) openJournal(readOnly bool) error {
	m, needed, err := boltfile.ReadJournal(s.db)
	if err != nil {
		return err
	}
	if s.options.JournalBudget == 0 && !needed {
		return nil
	}
	if !needed {
		// The file needs no journal, so it gets a new one. Its last one may be that of another file, of which it is a copy.
		_, _ = rand.Read(m.ID[:]) // It never fails.
		if !readOnly {            // Of processes that ended before they wrote the id of their journal.
			boltfile.RemoveEmptyJournals(s.path)
		}
	}
	o := journal.Options{
		ID: m.ID, After: m.Folded, ReadOnly: readOnly, MinSegment: s.options.segmentBytes, MaxSegment: s.options.segmentBytes,
	}
	o.MayGrow = s.mayGrow
	if needed {
		o.MustExist, o.Through, o.Segment = true, m.Through, m.Segment
	}
	found := new(overlay.Recovery)
	dir := boltfile.JournalDir(s.path, m.ID)
	j, err := journal.Open(dir, o, func(op journal.Operation) error {
		if err := found.Collect(op); err != nil {
			return fmt.Errorf("%w: operation %d of the journal: %w: %s", ErrDamaged, op.Index, err, boltfile.Remedy)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.Through, m.Segment = j.Next()-1, j.Segment()
	s.journal, s.tally.journalEntry, s.tally.journaled = j, m, true
	return s.db.View(func(tx *bolt.Tx) error {
		if last := uint64(tx.ID()); found.Any() && j.Anchor() > last {
			return fmt.Errorf("%w: it ends with transaction %d, its journal was written after transaction %d, so the "+
				"file is an older copy: %s", ErrDamaged, last, j.Anchor(), boltfile.Remedy)
		}
		return s.restorePending(tx, found)
	})
}

// restorePending puts the entries of the conversations, and of the records of tenants, that the file has without all
// their operations. It skips conversations that have been deleted, and operations that the file contains.
func (s *Store) restorePending(tx *bolt.Tx, found *overlay.Recovery) error {
	r := newReader(tx, journaled{})
	for _, c := range found.Conversations() { // In order: neighbours in the file are read one after the other.
		_, inner, _ := layout.CutTenant([]byte(c.Key))
		value := r.value(c.Tenant, layout.InnerKey(inner))
		if value == nil {
			continue
		}
		rec, err := record.UnmarshalHead(value)
		if err != nil || rec.Conversation().GetUid() != c.UID {
			continue // A damaged conversation stays as it is in the file.
		}
		p, ok := c.Pending(rec.Header.GetApplied(), layout.TenantRecords{})
		if !ok {
			continue
		}
		for _, turn := range p.Turns {
			s.tally.pending.PutTurn(c.Tenant, layout.InnerKey(inner), turn)
		}
		s.restore(c.Key, c.Tenant, p.Entry, p.Bytes, p.Operations...)
		if c.Turns {
			s.restoredTurns = append(s.restoredTurns, string(layout.IDKey(c.Tenant, rec.Conversation().GetId())))
		}
	}
	for _, t := range found.Tenants() {
		own, err := r.tenantRecords(t.Tenant)
		if err != nil {
			return fmt.Errorf("%w: %w: %s", ErrDamaged, err, boltfile.Remedy)
		}
		if p, ok := t.Pending(own.state.Applied, own.state); ok {
			s.restore(t.Key, t.Tenant, p.Entry, p.Bytes)
		}
	}
	return nil
}

// restore puts an entry of a file that has just been opened, and adds its counts to the tally. bytes is the size of the
// operations in the journal.
func (s *Store) restore(key, tenant string, e overlay.Entry, bytes int, operations ...overlay.Operation) {
	s.tally.pending.Put(key, e, bytes, operations...)
	for r := range e.Records.From("") {
		s.tally.noteRecordEnd(tenant, r.State.ExpireTime)
	}
	s.tally.addPending(tenant, e.Counts)
	mergeChanged(s.tally.tenants, map[string]layout.Counts{tenant: s.tally.tenants[tenant].Plus(e.Counts)})
	s.tally.total = s.tally.total.Plus(e.Counts)
}

// errNotJournaled means that an operation needs a transaction of the file. For a write of records: see mayJournal.
// For an append: see loadToLog; its conversation may also have to expire earlier than its entry in expiry says.
var errNotJournaled = errors.New("the operation needs a transaction")

// maxReplayed is the number of operations of a conversation whose head is not in memory from which the next one is a
// transaction. Each append to it replays all of them: with 2000, it took 12 ms of the writer.
const maxReplayed = 64

// journaledOperation is an operation that has been decided and not yet written to the journal.
type journaledOperation struct {
	tenant   string
	key      string // of the conversation; empty if there is none
	entry    overlay.Entry
	ofTenant *overlay.Entry    // of the tenant's records; nil if the operation does not edit them
	records  []*overlay.Record // that get their places when the operation is written
	turn     overlay.TurnChange
	payload  []byte
	counts   layout.Counts // by how much it changes those of the tenant
	id       string        // layout.IDKey of the conversation
	// appended are the messages that the operation adds. retained is the size of all messages that the
	// conversation then has and that are not in chunks, in bytes.
	appended store.Frames
	retained int
}

// logAppend decides an append to an existing conversation for the journal, in a read-only transaction.
// The error is errNotJournaled, or that of the append.
func (t *txn) logAppend(a *store.Append, drafts []record.Draft) (*record.Outcome, error) {
	now := t.options.Now()
	old, err := t.loadToLog(a, now)
	if err != nil {
		return nil, err
	}
	own, in, err := t.logInput(a, old)
	if err != nil {
		return nil, err
	}
	out, err := record.Append(old.record, a, drafts, in, "", now, t.options)
	if err != nil || out.Record == nil {
		return out, err
	}
	r := out.Record
	if old.expiresEarlier(r) {
		return nil, errNotJournaled
	}
	r.Header.Applied = t.nextIndex()
	size := r.Size()
	if !a.MayExceed() {
		added := int64(size-old.size) + out.Records.Bytes()
		space := r.ValueSize() + editSize(out.Records)
		if err := errors.Join(t.checkSpace(space), t.checkBytes(a.Tenant, added)); err != nil {
			return nil, err
		}
	}
	op := record.NewOperation(a, out, old.size, now, t.options)
	payload, err := proto.Marshal(op)
	if err != nil {
		return nil, fmt.Errorf("encode operation: %w", err)
	}
	l := journaledOperation{
		tenant: a.Tenant, key: string(layout.ConversationKey(a.Tenant, old.place.Key)), payload: payload,
		counts: layout.Counts{Messages: int64(op.GetMessagesAdded()), Bytes: op.GetBytesAdded()},
		id:     string(layout.IDKey(a.Tenant, a.ConversationID)), appended: out.Appended, retained: r.TailBytes(),
	}
	l.turn.Begun, _ = record.ParseTurnID(a.Begin.GetId())
	l.turn.Ended, _ = record.ParseTurnID(a.End.GetId())
	// From here on, later operations of the batch build on this one.
	if l.entry.Head, err = r.MarshalHead(); err != nil {
		return nil, err
	}
	l.entry.Sizes, l.entry.Counts = r.AllSizes(), l.counts
	before := overlay.Entry{}
	if old.pending != nil {
		before = *old.pending
	}
	l.entry.Size, l.entry.Counts = size, l.entry.Counts.Plus(before.Counts)
	t.logEdits(&l, before, r.Conversation(), own, out.Records)
	t.staged[l.key] = &l.entry
	t.log(l)
	t.recordVersion(a.Tenant, r)
	if a.End != nil {
		t.markEvictable(a.Tenant, old.place.Key)
	}
	t.changes = append(t.changes, out.Changes...)
	return out, nil
}

// loadToLog returns the conversation of an append for the journal, if it can take it. The error is errNotJournaled.
func (t *txn) loadToLog(a *store.Append, now time.Time) (*stored, error) {
	if a.ReplaceAfter != nil {
		return nil, errNotJournaled
	}
	old, err := t.load(a.Tenant, a.ConversationID, sized)
	if err != nil || old.live(now) == nil {
		return nil, errNotJournaled
	}
	replays := old.pending != nil && old.pending.Head == nil && len(old.pending.Operations) >= maxReplayed
	if replays || old.record.TailBytes() > limitTail*t.chunkSize || a.Begin != nil && old.record.MustDivideTurns() {
		return nil, errNotJournaled // A transaction folds and divides it.
	}
	if _, indexed := record.ParseTurnID(a.Begin.GetId()); indexed && t.turnIDs == nil {
		return nil, errNotJournaled // A transaction makes the index, so that older versions refuse the file.
	}
	return old, nil
}

// logInput looks up what the decision of an append for the journal needs to know of records. own is nil if the append
// writes none of the tenant. The error is errNotJournaled.
func (t *txn) logInput(a *store.Append, old *stored) (own *tenantRecords, in *records.Input, err error) {
	if records.HasTenantScope(a.Records) {
		if own, err = t.tenantRecords(a.Tenant); err != nil {
			return nil, nil, errNotJournaled
		}
	}
	if !t.mayJournal(a.Records, old.scope(), own, false) {
		return nil, nil, errNotJournaled
	}
	if in, err = t.recordInput(a.Records, old.scope(), own, false); err != nil {
		return nil, nil, errNotJournaled
	}
	return own, in, nil
}

// writeJournal writes those of the operations that the journal can take as one batch, and answers them. It
// returns the others, which need a transaction, in their order. After an append that needs a transaction, all
// later appends to the same conversation in the batch do.
func (s *Store) writeJournal(operations iter.Seq[*operation]) (others []*operation) {
	runtime.Gosched() // Callers that were just answered may queue their next operation: large batches cost less.
	w := s.writer
	full, began := s.folder.isFull(), time.Now()
	var t *txn
	var batch []*operation
	blocked := map[string]bool{}
	size := 0
	err := s.tally.guard.Do(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			for op := range operations {
				size += op.size
				op.cost = op.size + mutationCost
				if t == nil {
					t = s.beginTxn(tx)
				}
				if op.log == nil || full || blocked[op.conversation] {
					others = append(others, op)
				} else if op.err = s.tally.guard.Do(func() error { return op.log(t) }); !errors.Is(op.err, errNotJournaled) {
					batch = append(batch, op)
				} else {
					others, blocked[op.conversation] = append(others, op), true
				}
				if len(batch)+len(others) >= w.limits.batch || max(size, t.writtenBytes) >= w.batchBytes() {
					break
				}
			}
			return nil
		})
	})
	if err != nil {
		return append(batch, others...)
	}
	if full {
		s.journalCounts.bypassedFull.Add(countJournaled(others))
	}
	if len(batch) == 0 {
		return others
	}
	if err := s.commitJournal(t); errors.Is(err, store.ErrFailed) {
		w.breakDown(err)
		for _, op := range append(batch, others...) {
			op.answer(err)
		}
		return nil
	} else if err != nil {
		s.journalCounts.bypassedDisk.Add(int64(len(t.logged)))
		s.folder.begin()                // It makes space in the journal.
		return append(batch, others...) // The journal could not get another segment. The file may still have space.
	}
	if len(t.logged) > 0 {
		t.commit = describeCommit(batch, began)
		t.commit.Journal = true
	}
	s.afterCommit(t)
	for _, op := range batch {
		if errors.Is(op.err, store.ErrNoSpace) {
			s.folder.begin() // It frees segments, and the space of what was deleted.
		}
		op.answer(nil)
	}
	return others
}

// countJournaled returns the number of appends, which the journal could take if it were not full.
func countJournaled(operations []*operation) (n int64) {
	for _, op := range operations {
		if op.log != nil {
			n++
		}
	}
	return n
}

// commitJournal writes the decided operations of a batch and makes them visible. After an error nothing has changed,
// except if it is store.ErrFailed: then what is on disk is unknown.
func (s *Store) commitJournal(t *txn) error {
	if len(t.logged) == 0 {
		return nil
	}
	payloads := make([][]byte, len(t.logged))
	for i, l := range t.logged {
		payloads[i] = l.payload
	}
	first := s.tally.journalEntry.Through + 1
	places, err := s.journal.Append(uint64(t.transaction), payloads)
	if err != nil {
		if s.journal.Failed() {
			err = fmt.Errorf("%w: %w", store.ErrFailed, err)
		}
		return err
	}
	s.tally.journalEntry.Through += uint64(len(places))
	s.tally.journalEntry.Segment = s.journal.Segment()
	s.tally.versions.remove(t.versions)
	s.tally.cache.Block(t.changedKeys()) // No reader may see the old state after another reader saw the new one.
	for i, l := range t.logged {
		l.entry.Since = t.transaction
		if l.ofTenant != nil {
			l.ofTenant.Since = t.transaction
		}
		s.putLogged(l, overlay.Operation{Index: first + uint64(i), Place: places[i]})
	}
	for _, l := range t.logged {
		if l.key != "" {
			s.tally.cache.Append(l.id, l.entry.Head, l.appended, l.retained)
			s.folder.tails.note(l.key, l.retained)
		}
	}
	s.tally.replaceCachedRecords(t.edited)
	s.tally.cache.Unblock(t.changedKeys())
	if s.journal.BeganSegment() {
		s.folder.noteSegment()
	}
	s.folder.notify()
	return nil
}

// putLogged puts the entries of an operation that is on disk.
func (s *Store) putLogged(l journaledOperation, o overlay.Operation) {
	for _, r := range l.records {
		r.Operation = o
		s.tally.noteRecordEnd(l.tenant, r.State.ExpireTime)
	}
	if l.turn != (overlay.TurnChange{}) {
		_, inner, _ := layout.CutTenant([]byte(l.key))
		s.tally.pending.PutTurn(l.tenant, layout.InnerKey(inner), l.turn)
	}
	tenantKey := string(layout.TenantKey(l.tenant))
	switch {
	case l.ofTenant == nil:
		s.tally.pending.Put(l.key, l.entry, len(l.payload), o)
	case l.key == "":
		s.tally.pending.Put(tenantKey, *l.ofTenant, len(l.payload))
	default:
		s.tally.pending.PutBoth(l.key, l.entry, tenantKey, *l.ofTenant, len(l.payload), o)
	}
	s.tally.addPending(l.tenant, l.counts)
}

// mayGrow reports whether the disk has space for another segment of the journal, and then still for a fold of all
// segments and for the reserve.
func (s *Store) mayGrow(size, total int64) bool {
	free, disk, err := boltfile.DiskSpace(s.path)
	return err != nil || free-size >= boltfile.ReserveOf(disk)+total+size
}

// trimJournal frees the space of the unused segments if the file needs it.
func (s *Store) trimJournal() {
	if boltfile.IsLow(s.db) {
		s.journal.Trim()
	}
}
