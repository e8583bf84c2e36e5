package watch

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/parleyhq/parley/store"
)

// maxScanned limits the entries that are scanned under the lock at a time, so that writers do not
// wait for long. maxBatchBytes limits the entries that a reader receives at a time, since a slow
// reader holds them for long.
const (
	maxScanned    = 1024
	maxBatchBytes = 32 << 10
)

// feed is a list of the entries of one tenant and its readers. It retains its newest entries,
// limited by the budget of all tenants. Entries have positions, from 1.
//
// Writers hold mu while they append. Readers and the goroutine that notifies them hold readersMu. A
// goroutine that needs several locks takes that of the budget first, then readersMu, then mu.
type feed struct {
	budget   *budget
	tenant   string
	readers  atomic.Int64
	last     atomic.Uint64 // position of the newest entry; increases under mu
	notified atomic.Uint64 // readers were notified of the entries up to this position; increases under readersMu
	share    share         // guarded by the budget

	mu        sync.Mutex // guards the following fields
	retained  []*entry
	notifying bool        // a goroutine runs notify
	newest    store.Place // of the newest entry, or start
	// start is the place in the store after which all entries are retained. These are the entries after the position
	// startAt. The place is zero if the store has no places, or does not know them at present.
	start   store.Place
	startAt uint64

	readersMu sync.Mutex // guards the following fields and the readers; lock it before mu
	// idle holds the idle readers of the complete tenant. Other readers need no notification, and there
	// may be thousands of them.
	idle []*reader
	// byID holds the readers that name a conversation.
	byID map[string]map[*reader]struct{}
}

// newFeed returns a feed of the changes after a place in the store.
func newFeed(tenant string, b *budget, start store.Place) *feed {
	return &feed{
		budget: b, tenant: tenant, share: share{index: -1}, byID: make(map[string]map[*reader]struct{}),
		start: start, newest: start,
	}
}

// reader is a position in a feed. feed.readersMu guards the fields that change.
type reader struct {
	ids  map[string]struct{} // nil for all conversations of the tenant
	wake chan struct{}       // receives a value when there may be new entries
	// wakeOnly readers are woken by each change and read no entries.
	wakeOnly bool

	position uint64 // the reader has passed the entries up to this position
	// after is the place in the store from which the reader was resumed. Entries up to this place may still be added, if
	// another server received them first. The reader skips them.
	after store.Place
	// idle readers have passed all entries of which they were notified. Newer entries are not for
	// them, or the notification is still to come. An idle reader cannot miss entries.
	idle      bool
	idleIndex int // index in feed.idle, if the reader is idle and has no ids
}

func newReader(ids []string, woken chan struct{}) *reader {
	r := &reader{wake: woken}
	if len(ids) > 0 {
		r.ids = make(map[string]struct{}, len(ids))
		for _, id := range ids {
			r.ids[id] = struct{}{}
		}
	}
	return r
}

func (r *reader) wants(e *entry) bool {
	if e.gap {
		return true
	}
	if r.after.Epoch != "" && e.shared.Epoch == r.after.Epoch && e.shared.Compare(r.after) <= 0 {
		return false
	}
	_, named := r.ids[e.conversationID]
	return named || r.ids == nil
}

// add appends entries and starts the notification of readers. It does not wait for readers. It returns the
// feeds of which the budget has dropped the last entry.
func (f *feed) add(entries ...*entry) (emptied []*feed) {
	f.append(entries)
	return f.budget.charge(f, entries)
}

func (f *feed) append(entries []*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range entries {
		e.position = f.last.Add(1)
		f.retained = append(f.retained, e)
		// Places rise: a change that comes after later ones was committed before the GAP that precedes these.
		e.shared = later(f.newest, e.shared)
		f.newest = e.shared
		if e.gap {
			f.start, f.startAt = e.shared, e.position
		}
	}
	// The caller is the store's writer, and there may be thousands of readers to wake: notify them
	// in another goroutine.
	if !f.notifying && f.readers.Load() > 0 {
		f.notifying = true
		go f.notify(math.MaxInt)
	}
}

// dropOldest drops the oldest entry and returns its size. It notifies the readers of the entry before; otherwise
// an idle reader would receive a GAP without having missed an entry. The caller holds the lock of the budget.
// There must be an entry.
func (f *feed) dropOldest() (size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if oldest := f.retained[0]; oldest.position <= f.notified.Load() || f.readers.Load() == 0 {
			if oldest.position > f.startAt {
				f.start, f.startAt = oldest.shared, oldest.position
			}
			f.retained[0] = nil
			f.retained = f.retained[1:]
			return oldest.size
		}
		f.mu.Unlock()
		f.notify(1)
		f.mu.Lock()
	}
}

// end returns the position of the newest entry.
func (f *feed) end() uint64 { return f.last.Load() }

// hasReaders reports whether there are readers.
func (f *feed) hasReaders() bool { return f.readers.Load() > 0 }

// entriesAfterLocked returns at most maxScanned entries after a position. dropped reports whether
// entries directly after it were dropped. The caller holds mu.
func (f *feed) entriesAfterLocked(position uint64) (entries []*entry, dropped bool) {
	count := f.last.Load() - position
	if count > uint64(len(f.retained)) {
		return nil, true
	}
	entries = f.retained[uint64(len(f.retained))-count:]
	return entries[:min(len(entries), maxScanned)], false
}

// notify notifies the readers of new entries, in at most this number of batches of maxScanned
// entries.
func (f *feed) notify(batches int) {
	var wake []chan struct{}
	for more := true; more && batches > 0; batches-- {
		wake, more = f.notifyBatch(wake[:0])
		for _, woken := range wake {
			select {
			case woken <- struct{}{}:
			default: // The reader has an unread value.
			}
		}
	}
}

// notifyBatch notifies readers of some entries and appends their channels to wake.
func (f *feed) notifyBatch(wake []chan struct{}) (_ []chan struct{}, more bool) {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	f.mu.Lock()
	entries, _ := f.entriesAfterLocked(f.notified.Load())
	if len(entries) == 0 {
		f.notifying = false
		f.mu.Unlock()
		return wake, false
	}
	entries = slices.Clone(entries)
	f.mu.Unlock()

	for _, e := range entries {
		if e.gap {
			for id := range f.byID {
				wake = f.notifyNamed(id, e, wake)
			}
			continue
		}
		wake = f.notifyNamed(e.conversationID, e, wake)
	}
	wake = f.notifyIdle(positions{entries[0].position, entries[len(entries)-1].position}, wake)
	f.notified.Store(entries[len(entries)-1].position)
	return wake, true
}

// notifyNamed notifies the readers that name a conversation of an entry.
func (f *feed) notifyNamed(id string, e *entry, wake []chan struct{}) []chan struct{} {
	for r := range f.byID[id] {
		if r.wakeOnly || r.notify(positions{e.position, e.position}) {
			wake = append(wake, r.wake)
		}
	}
	return wake
}

// positions is a range of positions, both inclusive.
type positions struct{ first, last uint64 }

// notifyIdle notifies the idle readers of the complete tenant. Readers that may have new entries are
// no longer idle.
func (f *feed) notifyIdle(of positions, wake []chan struct{}) []chan struct{} {
	still := f.idle[:0]
	for _, r := range f.idle {
		if r.notify(of) {
			wake = append(wake, r.wake)
		} else {
			r.idleIndex = len(still)
			still = append(still, r)
		}
	}
	clear(f.idle[len(still):])
	f.idle = still
	return wake
}

// notify notifies the reader that entries in this range may be for it. It reports whether the reader
// must be woken.
func (r *reader) notify(of positions) bool {
	if !r.idle || of.last <= r.position {
		return false // The reader is active, or has passed the entries.
	}
	r.position, r.idle = max(r.position, of.first-1), false
	return true
}

// setIdle makes a reader idle. The caller holds readersMu.
func (f *feed) setIdle(r *reader) {
	if r.idle = true; r.ids == nil {
		r.idleIndex = len(f.idle)
		f.idle = append(f.idle, r)
	}
}

// setActive makes a reader active. The caller holds readersMu.
func (f *feed) setActive(r *reader) {
	if r.idle && r.ids == nil {
		end := len(f.idle) - 1
		f.idle[r.idleIndex], f.idle[end].idleIndex = f.idle[end], r.idleIndex
		f.idle[end] = nil
		f.idle = f.idle[:end]
	}
	r.idle = false
}

// addReader adds a reader at the end of the feed and returns the position of the end.
func (f *feed) addReader(r *reader) (position uint64) {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	first := f.readers.Add(1) == 1 // Count the reader before reading the end: it is notified of entries after the end.
	position = f.last.Load()
	if first {
		f.notified.Store(position) // Without readers, no entry was notified.
	}
	r.position = position
	f.setIdle(r)
	for id := range r.ids {
		if f.byID[id] == nil {
			f.byID[id] = make(map[*reader]struct{})
		}
		f.byID[id][r] = struct{}{}
	}
	return position
}

// rewind moves a new reader back to an earlier position. It reports whether all entries after the
// position are retained.
func (f *feed) rewind(r *reader, position uint64) bool {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, dropped := f.entriesAfterLocked(position); dropped {
		return false
	}
	f.setActive(r)
	r.position = position
	return true
}

// removeReader removes a reader.
func (f *feed) removeReader(r *reader) {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	f.readers.Add(-1)
	f.setActive(r)
	for id := range r.ids {
		delete(f.byID[id], r)
		if len(f.byID[id]) == 0 {
			delete(f.byID, id)
		}
	}
}

// batch is the result of next.
type batch struct {
	entries []*entry
	// position up to which all entries were returned or are not for the reader.
	position uint64
	gap      bool // entries for the reader were dropped; the reader is at the end of the feed
	more     bool // there are more entries up to the requested position
	idle     bool // there are no more entries; the reader will be woken
}

// next returns entries for a reader up to a position. It then advances the reader to the next entry
// for it, even after that position: entries of others may be dropped while the reader is slow.
func (f *feed) next(r *reader, through uint64) batch {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	if r.idle {
		r.position = max(r.position, f.notified.Load()) // Entries for which the reader was not woken are not for it.
		if through <= r.position {
			return batch{position: r.position, idle: true}
		}
		f.setActive(r)
	}
	var b batch
	for size := 0; ; {
		entries, dropped := f.entriesAfter(r.position)
		if dropped && len(b.entries) > 0 { // Return these first, then the gap.
			b.position, b.more = r.position, true
			return b
		}
		if dropped {
			b.gap, r.position = true, f.end()
		}
		if len(entries) == 0 {
			f.setIdle(r)
			b.position, b.idle = r.position, true
			return b
		}
		for _, e := range entries {
			if r.wants(e) {
				if e.position > through || size >= maxBatchBytes {
					b.position, b.more = r.position, e.position <= through
					return b
				}
				b.entries, size = append(b.entries, e), size+e.size
			}
			r.position = e.position
		}
	}
}

// entriesAfter is entriesAfterLocked for callers that do not hold mu.
func (f *feed) entriesAfter(position uint64) (entries []*entry, dropped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, dropped = f.entriesAfterLocked(position)
	return slices.Clone(entries), dropped
}
