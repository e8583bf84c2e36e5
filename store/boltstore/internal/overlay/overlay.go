// Package overlay keeps in memory what the journal of a store contains and its file does not contain yet:
// an [Entry] for each conversation with such operations, one for the records of each tenant with such operations, and
// the ids of the turns that such operations begin.
//
// One goroutine, the writer, changes a [Set]: it puts the entry of a conversation after its operation is
// on disk, and marks the entry as folded when a transaction writes the conversation to the file. Readers
// get a [View] before they begin their transaction, and look up an entry in it after they have begun the
// transaction. A lookup compares the entry with the transaction:
//
//	entry was put, nothing folded since      the file plus the operations of the entry
//	folded by a transaction the reader sees  the file
//	folded by a later transaction            the file plus the operations of the entry before the fold
//	put after a later transaction            stale: the reader begins again with a new transaction
//
// A generation is the entries that are folded together. [Set.Put] adds to the current generation.
// [Set.Begin] makes it the one that is folded, and begins a new one. [Set.End] removes the generation that
// is folded, after all its entries have been folded. Views that were made before keep it.
//
// Start at [Set].
package overlay

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// maxHeadBytes is the maximum memory of the heads and sizes of the current generation, in bytes. Entries that would
// exceed it have none.
const maxHeadBytes = 32 << 20

// Memory of an entry without its operations, head and sizes, and of each operation, in bytes: measured, with the slots
// of the map and the spare capacity of slices.
const (
	entryBytes     = 208
	operationBytes = 32
)

// ErrStale means that a reader's transaction is older than what it looks up.
var ErrStale = errors.New("a later transaction has changed the conversation")

// Operation is where the journal has an operation.
type Operation struct {
	Index uint64
	Place journal.Place
}

// Entry is the state of a conversation, or of the records of a tenant, after the operations that the file does not
// contain. An entry in a Set does not change.
type Entry struct {
	// Operations in order. The file may contain the first of them; see Header.applied. The entry of a tenant has none.
	Operations []Operation
	// Counts are by how much the operations change the counts of the tenant.
	Counts layout.Counts
	// Size is the size of the conversation after the operations, see record.Record.Size; 0 if it is unknown.
	Size int
	// Head is the record without its messages. Those that are not in chunks have Sizes. If Head is nil, the record must
	// be made from the file and the operations.
	Head  []byte
	Sizes record.SizeList
	// Records are the records of the scope that the operations write or delete.
	Records *Records
	// Since is the number of the newest transaction when the operations were decided, on which they build: that may have
	// written the conversation without an entry to fold. Readers of earlier transactions must not apply them.
	Since int
	// Tenant is the state of the tenant's records. Only the entry of a tenant has it.
	Tenant layout.TenantRecords

	since    int    // Since of the first of the operations
	folded   int    // number of the transaction that folded this entry; 0 if none did
	previous *Entry // the entry before it was folded, for readers of earlier transactions
}

// Through returns the index of the newest operation.
func (e *Entry) Through() uint64 {
	if n := len(e.Operations); n > 0 {
		return e.Operations[n-1].Index
	}
	return e.Tenant.Applied
}

func (e *Entry) headBytes() int { return len(e.Head) + e.Sizes.Memory() }

// Set is a set of entries by the key of their conversation, or by layout.TenantKey.
type Set struct {
	mu               sync.RWMutex
	current, folding map[string]*Entry // folding is nil unless a generation is being folded
	// The turns that operations of the generations begin, by tenant.
	currentTurns, foldingTurns map[string]*turns
	headBytes                  int
	foldingThrough             uint64 // see Begin
	// What the operations of the current generation, and of the one that is folded, take.
	currentUse, foldingUse use
}

// use is what the operations of a generation take.
type use struct {
	bytes  int64     // in the journal
	memory int64     // of their entries, without heads and sizes
	since  time.Time // when the first was put; zero if there is none
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{current: map[string]*Entry{}, currentTurns: map[string]*turns{}} }

// View is the generations of a Set at one instant. Later changes of their entries are visible in it. The
// zero value has no entries.
type View struct {
	set     *Set
	current map[string]*Entry
	folding map[string]*Entry
}

// View returns a view of the set.
func (s *Set) View() View {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return View{set: s, current: s.current, folding: s.folding}
}

// Get returns the entry of a conversation for a reader of a transaction, or nil if the file has the
// conversation as it is. If the reader's transaction is too old, it returns the entry with ErrStale: its
// Head, if it has one, is right, but the file does not have the messages that belong to it.
func (v View) Get(key []byte, transaction int) (*Entry, error) {
	if v.set == nil {
		return nil, nil //nolint:nilnil // No entry is a valid result.
	}
	v.set.mu.RLock()
	e := v.current[string(key)]
	if e == nil {
		e = v.folding[string(key)]
	}
	v.set.mu.RUnlock()
	for e != nil && e.folded > transaction {
		e = e.previous
	}
	switch {
	case e == nil || e.folded != 0:
		return nil, nil //nolint:nilnil // As above.
	case e.since > transaction:
		return e, ErrStale
	}
	return e, nil
}

// Put puts the entry of a conversation after more operations, which have so many bytes in the journal. It
// sets e.Operations: earlier operations of the conversation that are not folded, then these. e.Counts, e.Records and
// e.Tenant must include those earlier operations.
func (s *Set) Put(key string, e Entry, bytes int, operations ...Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, e, bytes, operations...)
}

// PutBoth puts the entries of a conversation and of the records of its tenant after one operation, as Put does. No
// reader sees one of them without the other.
func (s *Set) PutBoth(key string, e Entry, tenantKey string, ofTenant Entry, bytes int, operation Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, e, bytes, operation)
	s.put(tenantKey, ofTenant, 0)
}

func (s *Set) put(key string, e Entry, bytes int, operations ...Operation) {
	before := s.current[key]
	if before == nil {
		before = s.folding[key]
		s.currentUse.memory += entryBytes
	} else {
		s.headBytes -= before.headBytes()
		s.currentUse.memory -= before.Records.Memory()
	}
	switch {
	case before == nil:
		e.since = e.Since
	case before.folded != 0:
		e.since = max(e.Since, before.folded)
	default:
		e.since, e.Operations = before.since, before.Operations
	}
	e.Operations = append(e.Operations, operations...)
	if s.headBytes+e.headBytes() > maxHeadBytes {
		e.Head, e.Sizes = nil, record.SizeList{}
	}
	s.headBytes += e.headBytes()
	s.currentUse.bytes += int64(bytes)
	s.currentUse.memory += int64(operationBytes*len(operations)) + e.Records.Memory()
	if s.currentUse.since.IsZero() {
		s.currentUse.since = time.Now()
	}
	s.current[key] = &e
}

// Fold marks the entry of a conversation as folded by a transaction, before that is committed. If the
// transaction is rolled back, the caller calls Unfold.
func (s *Set) Fold(key string, transaction int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entries := range []map[string]*Entry{s.current, s.folding} {
		if e := entries[key]; e != nil && e.folded == 0 {
			entries[key] = &Entry{folded: transaction, previous: e}
		}
	}
	if e := s.current[key]; e != nil {
		s.headBytes -= e.previous.headBytes()
	}
}

// Unfold undoes the Fold of a conversation by a transaction.
func (s *Set) Unfold(key string, transaction int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, entries := range []map[string]*Entry{s.current, s.folding} {
		if e := entries[key]; e != nil && e.folded == transaction {
			entries[key] = e.previous
			if i == 0 {
				s.headBytes += e.previous.headBytes()
			}
		}
	}
}

// Begin begins a new generation with the entries of the operations through an index, unless one has not ended.
// It returns the keys of the entries of the generation to fold, in order, and the index through which the generation
// has the operations.
//
// Generations are never joined: a view that was taken before has the maps of its time, in which Fold must mark the
// entries.
func (s *Set) Begin(through uint64) (keys []string, generationThrough uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folding == nil {
		s.folding, s.foldingUse, s.foldingThrough = s.current, s.currentUse, through
		s.current, s.currentUse, s.headBytes = map[string]*Entry{}, use{}, 0
		s.foldingTurns, s.currentTurns = s.currentTurns, map[string]*turns{}
	}
	return slices.Sorted(maps.Keys(s.folding)), s.foldingThrough
}

// End ends the generation that is being folded, and removes its entries.
func (s *Set) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.folding, s.foldingTurns, s.foldingUse = nil, nil, use{}
}

// Freeze returns, by key, all entries that Get returns to a reader of a transaction. If the transaction is too old for
// one of them, the error is ErrStale.
func (s *Set) Freeze(transaction int) (map[string]*Entry, error) {
	v, frozen := s.View(), map[string]*Entry{}
	for _, entries := range []map[string]*Entry{v.folding, v.current} {
		s.mu.RLock()
		keys := slices.Collect(maps.Keys(entries))
		s.mu.RUnlock()
		for _, key := range keys {
			e, err := v.Get([]byte(key), transaction)
			if err != nil {
				return nil, err
			}
			if e != nil {
				frozen[key] = e
			}
		}
	}
	return frozen, nil
}

// Bytes returns the size of the operations in the journal, in bytes: those of the current generation, and
// those of the one that is being folded.
func (s *Set) Bytes() (current, folding int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.currentUse.bytes, s.foldingUse.bytes
}

// Memory returns how much memory the entries of the two generations take besides their heads and sizes, in bytes.
func (s *Set) Memory() (current, folding int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.currentUse.memory, s.foldingUse.memory
}

// Since returns when the first entry of the generations that have not ended was put, or the zero time.
func (s *Set) Since() time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.foldingUse.since.IsZero() {
		return s.foldingUse.since
	}
	return s.currentUse.since
}
