package boltstore

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/fairqueue"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
)

// One operation folds so many conversations at most, and ends after so many bytes: about 5 ms, in which appends wait.
// Smaller ones would need more syncs for the same bytes.
const (
	foldStep  = 256
	foldBytes = 1 << 20
)

// folder folds the operations of the journal into the file, one generation after the other: when a generation reaches
// the budget, and at the latest after Options.JournalAge. It folds conversations with long tails earlier.
type folder struct {
	store *Store
	tails longTails
	full  chan struct{} // has an element if the current generation has reached the budget
	// segment has an element if the journal has begun a segment and the file may not know that.
	segment chan struct{}
	stop    chan struct{}
	done    chan struct{}
}

func newFolder(s *Store) *folder {
	f := &folder{
		store: s, tails: newLongTails(s.options.chunkSize), full: make(chan struct{}, 1), segment: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	f.notify() // An earlier process may have left enough, or had a larger budget.
	go f.run()
	return f
}

// memoryShare is how many bytes of the budget allow one byte of memory for the entries of the overlay, without heads.
// For a budget of 256 MiB that is 32 MiB: four operations in each of 100,000 conversations. Heads take another 32 MiB.
const memoryShare = 8

// usage returns the size of the current generation, and of this and the one that is folded together, as a part of the
// budget: 1 is all of it. A generation counts with its bytes in the journal, or with its memory if that part is larger.
func (f *folder) usage() (current, both float64) {
	s := f.store
	bytes, foldingBytes := s.tally.pending.Bytes()
	memory, foldingMemory := s.tally.pending.Memory()
	budget := float64(s.options.JournalBudget)
	return float64(max(bytes, memory*memoryShare)) / budget,
		float64(max(bytes+foldingBytes, (memory+foldingMemory)*memoryShare)) / budget
}

// notify is called after operations were put.
func (f *folder) notify() {
	if current, _ := f.usage(); current >= 1 {
		f.begin()
	}
}

// noteSegment makes the folder write to the file how far the journal reaches. Without that, a journal whose newest
// segment is missing would look complete.
func (f *folder) noteSegment() {
	select {
	case f.segment <- struct{}{}:
	default:
	}
}

// begin makes the folder fold as soon as possible.
func (f *folder) begin() {
	select {
	case f.full <- struct{}{}:
	default:
	}
}

// isFull reports whether the journal has reached twice its budget. Then appends are written in transactions until the
// fold has caught up.
func (f *folder) isFull() bool {
	_, both := f.usage()
	return both >= 2
}

// do makes the writer apply an operation, unless the folder stops first.
func (f *folder) do(apply func(*txn) error) error {
	return f.store.do(untilStop(f.stop), fairqueue.Upkeep, 0, apply)
}

// untilStop is a context without values that ends when the channel is closed.
type untilStop chan struct{}

// Deadline returns no deadline.
func (untilStop) Deadline() (deadline time.Time, ok bool) { return deadline, false }

// Done returns the channel.
func (u untilStop) Done() <-chan struct{} { return u }

// Err returns context.Canceled after the end.
func (u untilStop) Err() error {
	select {
	case <-u:
		return context.Canceled
	default:
		return nil
	}
}

// Value returns nil: the context has no values.
func (untilStop) Value(any) any { return nil }

func (f *folder) run() {
	defer close(f.done)
	age := time.NewTicker(f.store.options.JournalAge)
	defer age.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-f.segment:
			_ = f.do(func(t *txn) error { // After an error, the next transaction does the same.
				t.dirty = true
				return nil
			})
			continue
		case <-f.tails.urgent:
			f.divide()
			continue
		case <-f.full:
		case <-age.C:
		}
		f.fold()
	}
}

// close stops the goroutine. A fold that runs ends after its current step.
func (f *folder) close() {
	close(f.stop)
	<-f.done
}

// fold folds the current generation, or the rest of the one before if that has not ended. After an error, such as a
// full disk, a later call continues.
func (f *folder) fold() {
	s, start := f.store, time.Now()
	var keys []string
	var through uint64
	if f.do(func(*txn) error {
		s.trimJournal()
		keys, through = s.tally.pending.Begin(s.tally.journalEntry.Through)
		return nil
	}) != nil {
		return
	}
	var unreadable error
	for left := keys; len(left) > 0; {
		began := time.Now()
		var step foldedKeys
		if f.do(func(t *txn) (err error) {
			step, err = t.foldKeys(left)
			return err
		}) != nil {
			return
		}
		left, unreadable = left[step.keys:], cmp.Or(unreadable, step.unreadable)
		s.journalCounts.foldedConversations.Add(int64(step.conversations))
		if !f.pause(time.Since(began)) {
			return
		}
	}
	if unreadable != nil || f.do(func(t *txn) error {
		t.endGeneration(through)
		return nil
	}) != nil {
		return
	}
	if len(keys) > 0 {
		s.journalCounts.folds.Add(1)
		s.journalCounts.foldTime.Add(int64(time.Since(start)))
	}
	f.notify() // The next generation may be full, so that no append would do so.
}

// pause waits for d, the time that the last step took, so that appends have half of the time. It does not wait if the
// current generation is above 80 % of the budget. It divides long tails in the meantime. It returns false if the folder
// stops.
func (f *folder) pause(d time.Duration) bool {
	if current, _ := f.usage(); current > 0.8 {
		d = 0
	}
	for end := time.After(d); ; {
		select {
		case <-f.stop:
			return false
		case <-f.tails.urgent:
			f.divide()
		case <-end:
			return true
		}
	}
}

// foldedKeys is what one operation has folded.
type foldedKeys struct {
	keys          int // how many are done: at least one, unless there were none
	conversations int // how many of them were folded
	// unreadable is the error of a conversation with an operation that cannot be read or applied. Without that
	// operation, the file would have an older state that looks sound. So the generation must not end until that
	// succeeds or the conversation is deleted.
	unreadable error
}

// foldKeys folds the first conversations, by their keys. It skips those that were deleted or folded since, and those
// that are damaged in the file: they cannot be read, with the operations or without them. If the disk has no space,
// the error is store.ErrNoSpace.
func (t *txn) foldKeys(keys []string) (done foldedKeys, err error) {
	before, space := t.writtenBytes, boltfile.SpaceToFold(t.meta.Tx().DB())
	for _, key := range keys[:min(len(keys), foldStep)] {
		if t.writtenBytes-before >= foldBytes {
			break
		}
		done.keys++
		size, write, err := t.loadToFold(key)
		if errors.Is(err, errUnreadable) {
			done.unreadable = cmp.Or(done.unreadable, err)
		}
		if err != nil || write == nil {
			continue
		}
		if err := t.checkFold(size, space); err != nil {
			return done, err
		}
		write()
		done.conversations++
	}
	return done, nil
}

// loadToFold returns the size in bytes of what a fold of a conversation, or of the records of a tenant, writes, and
// what writes it; nil if there is nothing to fold.
func (t *txn) loadToFold(key string) (size int64, write func(), err error) {
	tenant, inner, _ := layout.CutTenant([]byte(key))
	if len(inner) == 0 {
		own, err := t.loadTenantRecords(tenant)
		if err != nil || own.entry == nil {
			return 0, nil, err
		}
		return own.pending.Bytes(), func() { t.foldTenantRecords(own) }, nil
	}
	s, err := t.loadFull(tenant, layout.InnerKey(inner))
	if err != nil || s.pending == nil {
		return 0, nil, err
	}
	return int64(s.record.ValueSize()) + s.pending.Records.Bytes(), func() { t.writeFolded(s) }, nil
}

// foldAllKeys folds conversations by their keys while no writer runs. It calls pause after each transaction, with the
// time that it took. Its error may be that of foldedKeys.unreadable, after all others were folded.
func (s *Store) foldAllKeys(keys []string, pause func(time.Duration) error) error {
	var unreadable error
	for len(keys) > 0 {
		began := time.Now()
		var step foldedKeys
		if err := s.transact(func(t *txn) (err error) {
			step, err = t.foldKeys(keys)
			return err
		}); err != nil {
			return err
		}
		keys, unreadable = keys[step.keys:], cmp.Or(unreadable, step.unreadable)
		if err := pause(time.Since(began)); err != nil {
			return err
		}
	}
	return unreadable
}

// loadFull returns the conversation with an inner key and all its parts. Errors: store.ErrNotFound, store.ErrCorrupt.
func (t *txn) loadFull(tenant string, key layout.InnerKey) (s *stored, err error) {
	err = t.tally.guard.Do(func() error {
		value := t.value(tenant, key)
		if value == nil {
			return store.ErrNotFound
		}
		rec, size, e, err := t.decode(tenant, key, value, all)
		if err != nil {
			return err
		}
		f := found{exists: true, place: layout.Place{Key: key}, record: rec, size: size, pending: e}
		s = t.newStored(tenant, rec.Conversation().GetId(), f)
		s.values, err = t.pendingValues(s.scope())
		return err
	})
	return s, err
}

// fold writes a conversation with all its operations to the file, if it has any that the file does not contain. An
// operation that writes other entries of a conversation, but not its value, calls fold first, so that the file
// without its journal is consistent.
func (t *txn) fold(s *stored) {
	if s.pending == nil {
		return
	}
	if full, err := t.loadFull(s.tenant, s.place.Key); err == nil {
		t.writeFolded(full)
		s.pending, s.size = nil, full.size
	}
}

// writeFolded writes a conversation with all its parts.
func (t *txn) writeFolded(s *stored) {
	e, err := t.encode(s.tenant, s.record)
	if err != nil {
		t.fail(err)
		return
	}
	t.dropPending(s)
	t.putConversation(s.tenant, s.record, e)
	t.putRecords(s.scope(), s.values)
	t.writeTurn(s, s.turn)
	if e.divides() { // The size changes a little, and the state in the cache has another division.
		t.addCounts(s.tenant, layout.Counts{Bytes: int64(e.Size - s.size)})
		t.recordVersion(s.tenant, s.record)
	}
	s.size = e.Size
}

// dropPending marks the operations of a conversation in the journal as folded, if it has any. It is called before the
// transaction writes or removes the conversation. s may be nil.
func (t *txn) dropPending(s *stored) {
	if s == nil || s.pending == nil {
		return
	}
	t.dropEntry(s.tenant, string(layout.ConversationKey(s.tenant, s.place.Key)), s.pending)
}

// dropEntry marks the operations of an entry of the overlay as folded.
func (t *txn) dropEntry(tenant, key string, e *overlay.Entry) {
	// First: if a read of the file panics later, the transaction must not commit without the operations.
	t.mutations++
	t.tally.pending.Fold(key, t.transaction) // Now: later operations of the transaction must see what this one writes.
	t.folded, t.dirty = append(t.folded, key), true
	t.unfolded[tenant] = t.unfolded[tenant].Plus(e.Counts)
}

// undo undoes the changes of the transaction to the overlay and the cache. It is called after the transaction was
// rolled back.
func (t *txn) undo() {
	for _, key := range t.folded {
		t.tally.pending.Unfold(key, t.transaction)
	}
	t.tally.cache.Unblock(t.changedKeys())
}

// endGeneration makes the transaction write that the file contains all operations up to an index. After its commit,
// the generation that was folded ends.
func (t *txn) endGeneration(through uint64) {
	t.endsGeneration, t.foldedThrough = true, through
	t.dirty = t.dirty || through > t.tally.journalEntry.Folded
}

// dropJournal closes and removes a journal whose operations are all folded.
func (s *Store) dropJournal() error {
	err := s.journal.Close()
	s.journal, s.tally.journaled = nil, false
	return errors.Join(err, s.removeJournal())
}

// removeJournal removes the directory of a closed journal whose operations are all folded.
func (s *Store) removeJournal() error {
	return os.RemoveAll(boltfile.JournalDir(s.path, s.tally.journalEntry.ID))
}

// foldAll folds all operations while the writer does not run. After that, the file needs no journal.
func (s *Store) foldAll() error {
	noPause := func(time.Duration) error { return nil }
	for range 2 { // A generation that has not ended, and the current one.
		keys, _ := s.tally.pending.Begin(s.tally.journalEntry.Through)
		if err := s.foldAllKeys(keys, noPause); err != nil {
			return err
		}
		s.tally.pending.End()
	}
	if err := s.transact(func(t *txn) error {
		t.endGeneration(s.tally.journalEntry.Through)
		t.inJournal, t.dirty = false, true
		return nil
	}); err != nil {
		return err
	}
	s.journal.Release(s.tally.journalEntry.Folded)
	return nil
}
