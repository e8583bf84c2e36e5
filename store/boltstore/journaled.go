package boltstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
)

// openJournal opens the journal if the store should use one or the file needs one, and puts the operations that the
// file does not contain into tally.pending. If readOnly is true, it changes no file.
func (s *Store) openJournal(readOnly bool) error {
	m, unfolded, err := boltfile.ReadJournal(s.db)
	if err != nil {
		return err
	}
	if s.options.JournalBudget == 0 && !unfolded {
		return nil
	}
	if !unfolded {
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
	if unfolded {
		o.MustExist, o.Through, o.Segment = true, m.Through, m.Segment
	}
	found := map[string]*unfoldedConversation{}
	dir := boltfile.JournalDir(s.path, m.ID)
	j, err := journal.Open(dir, o, func(op journal.Operation) error { return collect(found, op) })
	if err != nil {
		return err
	}
	m.Through, m.Segment = j.Next()-1, j.Segment()
	s.journal, s.tally.journalEntry, s.tally.journaled = j, m, true
	return s.db.View(func(tx *bolt.Tx) error {
		if last := uint64(tx.ID()); len(found) > 0 && j.Anchor() > last {
			return fmt.Errorf("%w: it ends with transaction %d, its journal was written after transaction %d, so the "+
				"file is an older copy: %s", ErrDamaged, last, j.Anchor(), boltfile.Remedy)
		}
		return s.restorePending(tx, found)
	})
}

// unfoldedConversation is what the journal has about a conversation.
type unfoldedConversation struct {
	uid        string
	operations []overlay.Operation
	counts     []layout.Counts // by how much each changes those of the tenant
	turns      bool            // at least one begins or ends a turn
}

// collect adds an operation to those of its conversation. It drops the earlier operations of a deleted
// conversation with the same key.
func collect(found map[string]*unfoldedConversation, o journal.Operation) error {
	op, err := record.ReadOperationInfo(o.Bytes)
	if err != nil {
		return fmt.Errorf("%w: operation %d of the journal: %w: %s", ErrDamaged, o.Index, err, boltfile.Remedy)
	}
	key := layout.ConversationKey(string(op.Tenant), layout.InnerKey(op.Key))
	c := found[string(key)]
	if c == nil || c.uid != string(op.UID) {
		c = &unfoldedConversation{uid: string(op.UID)}
		found[string(key)] = c
	}
	c.operations = append(c.operations, overlay.Operation{Index: o.Index, Place: o.Place})
	c.counts = append(c.counts, layout.Counts{Messages: op.MessagesAdded, Bytes: op.BytesAdded})
	c.turns = c.turns || op.Turn
	return nil
}

// restorePending puts the entries of the conversations that the file has without all their
// operations. It skips conversations that have been deleted, and operations that the file contains.
func (s *Store) restorePending(tx *bolt.Tx, found map[string]*unfoldedConversation) error {
	r := newReader(tx, journaled{})
	for _, key := range slices.Sorted(maps.Keys(found)) { // Neighbours in the file are read one after the other.
		c := found[key]
		tenant, inner, _ := layout.CutTenant([]byte(key))
		value := r.value(tenant, layout.InnerKey(inner))
		if value == nil {
			continue
		}
		rec, err := record.UnmarshalHead(value)
		if err != nil || rec.Conversation().GetUid() != c.uid {
			continue // A damaged conversation stays as it is in the file.
		}
		var sum layout.Counts
		bytes := 0
		first := 0
		for i, o := range c.operations {
			if o.Index <= rec.Header.GetApplied() {
				first = i + 1
				continue
			}
			sum, bytes = sum.Plus(c.counts[i]), bytes+o.Place.Length()
		}
		if first == len(c.operations) {
			continue
		}
		s.restore(key, tenant, overlay.Entry{Messages: sum.Messages, Bytes: sum.Bytes}, bytes, c.operations[first:]...)
		if c.turns {
			s.restoredTurns = append(s.restoredTurns, string(layout.IDKey(tenant, rec.Conversation().GetId())))
		}
	}
	return nil
}

// restore puts the entry of a conversation of a file that has just been opened, and adds its counts to the tally.
// bytes is the size of the operations in the journal.
func (s *Store) restore(key, tenant string, e overlay.Entry, bytes int, operations ...overlay.Operation) {
	counts := layout.Counts{Messages: e.Messages, Bytes: e.Bytes}
	s.tally.pending.Put(key, e, bytes, operations...)
	s.tally.addPending(tenant, counts)
	s.tally.tenants[tenant], s.tally.total = s.tally.tenants[tenant].Plus(counts), s.tally.total.Plus(counts)
}

// errNotJournaled means that an append needs a transaction of the file: its conversation does not exist, or
// would expire earlier than its entry in expiry says.
var errNotJournaled = errors.New("the operation needs a transaction")

// maxReplayed is the number of operations of a conversation whose head is not in memory from which the next one is a
// transaction. Each append to it replays all of them: with 2000, it took 12 ms of the writer.
const maxReplayed = 64

// journaledOperation is an operation that has been decided and not yet written to the journal.
type journaledOperation struct {
	tenant  string
	key     string // of the conversation
	entry   overlay.Entry
	payload []byte
	counts  layout.Counts // by how much it changes those of the tenant
	id      string        // layout.IDKey of the conversation
	// appended are the messages that the operation adds. retained is the size of all messages that the
	// conversation then has, in bytes.
	appended store.Frames
	retained int
}

// logAppend decides an append to an existing conversation for the journal, in a read-only transaction.
// The error is errNotJournaled, or that of the append.
func (t *txn) logAppend(a *store.Append, drafts []record.Draft) (*store.Result, error) {
	now := t.options.Now()
	old, err := t.load(a.Tenant, a.ConversationID, sized)
	if err != nil || old.live(now) == nil {
		return nil, errNotJournaled
	}
	if e := old.pending; e != nil && e.Head == nil && len(e.Operations) >= maxReplayed {
		return nil, errNotJournaled // A transaction folds it.
	}
	out, err := record.Append(old.record, a, drafts, "", now, t.options)
	if err != nil || out.Record == nil {
		if err != nil {
			return nil, err
		}
		return out.Result, nil
	}
	r := out.Record
	if old.expiresEarlier(r) {
		return nil, errNotJournaled
	}
	r.Header.Applied = t.tally.journalEntry.Through + 1 + uint64(len(t.logged))
	size := r.Size()
	if a.End == nil {
		if err := errors.Join(t.checkSpace(size), t.checkBytes(a.Tenant, size, old)); err != nil {
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
		id:     string(layout.IDKey(a.Tenant, a.ConversationID)), appended: out.Appended, retained: r.MessageBytes(),
	}
	// From here on, later operations of the batch build on this one.
	if l.entry.Head, err = r.MarshalHead(); err != nil {
		return nil, err
	}
	l.entry.Sizes, l.entry.Messages, l.entry.Bytes = record.PackSizes(r.AllSizes()), l.counts.Messages, l.counts.Bytes
	if old.pending != nil {
		l.entry.Messages, l.entry.Bytes = l.entry.Messages+old.pending.Messages, l.entry.Bytes+old.pending.Bytes
	}
	t.staged[l.key] = &l.entry
	t.logged = append(t.logged, l)
	t.writtenBytes += len(payload)
	t.recordVersion(a.Tenant, r)
	t.addCounts(a.Tenant, l.counts)
	if a.End != nil {
		t.markEvictable(a.Tenant, old.place.Key)
	}
	t.changes = append(t.changes, out.Changes...)
	return out.Result, nil
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
	s.tally.cache.Block(maps.Keys(t.versions)) // No reader may see the old state after another reader saw the new one.
	for i, l := range t.logged {
		s.tally.pending.Put(l.key, l.entry, len(l.payload),
			overlay.Operation{Index: first + uint64(i), Place: places[i]})
		s.tally.addPending(l.tenant, l.counts)
	}
	for _, l := range t.logged {
		s.tally.cache.Append(l.id, l.entry.Head, l.appended, l.retained)
	}
	s.tally.cache.Unblock(maps.Keys(t.versions))
	if s.journal.BeganSegment() {
		s.folder.noteSegment()
	}
	s.folder.notify()
	return nil
}

// mayGrow reports whether the disk has space for another segment of the journal, and then still for a fold of all
// segments and for the reserve.
func (s *Store) mayGrow(size, total int64) bool {
	free, disk, err := boltfile.DiskSpace(s.path)
	return err != nil || free-size >= reserveOf(disk)+total+size
}

// trimJournal frees the space of the unused segments if the file needs it.
func (s *Store) trimJournal() {
	if isLow(s.db) {
		s.journal.Trim()
	}
}

// reserveOf returns the reserve on a disk of size bytes.
func reserveOf(size int64) int64 { return min(maxReserve, size/boltfile.ReservePart) }

// spaceToFold returns how many bytes a fold may write. It leaves half of the reserve to deletes.
func spaceToFold(db *bolt.DB) int64 {
	free, disk, err := boltfile.DiskSpace(db.Path())
	if err != nil {
		return math.MaxInt64
	}
	return free + spaceInFile(db) - reserveOf(disk)/2
}

// spaceInFile returns half of the bytes in free pages: they may be scattered, and a conversation needs as
// many contiguous pages as it fills.
func spaceInFile(db *bolt.DB) int64 {
	stats := db.Stats()
	return int64(stats.FreePageN+stats.PendingPageN) * int64(db.Info().PageSize) / 2
}
