package watch

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// maxScanned limits the entries that are scanned under the lock at a time, so that writers do not
// wait for long. maxBatchBytes limits the entries that a reader receives at a time, since a slow
// reader holds them for long.
const (
	maxScanned    = 1024
	maxBatchBytes = 32 << 10
)

type conversation struct{ tenant, id string }

// feed is a list of entries and its readers. It retains the newest entries. Entries have positions,
// from 1.
//
// Writers hold mu while they append. Readers and the goroutine that notifies them hold readersMu. A
// goroutine that needs both locks takes readersMu first.
type feed struct {
	maxEntries, maxBytes int
	readers              atomic.Int64
	last                 atomic.Uint64 // position of the newest entry; increases under mu
	// Readers have been notified of the entries up to this position; increases under readersMu.
	notified atomic.Uint64

	mu        sync.Mutex // guards the following fields
	retained  []*entry
	bytes     int
	notifying bool // a goroutine runs notify

	readersMu sync.Mutex // guards the following fields and the readers; lock it before mu
	// idleByTenant holds the idle readers of complete tenants. Other readers need no notification,
	// and there may be thousands of them.
	idleByTenant map[string][]*reader
	// byConversation holds the readers that name the conversation.
	byConversation map[conversation]map[*reader]struct{}
}

func newFeed(maxEntries, maxBytes int) *feed {
	return &feed{
		maxEntries: maxEntries, maxBytes: maxBytes,
		idleByTenant: make(map[string][]*reader), byConversation: make(map[conversation]map[*reader]struct{}),
	}
}

// reader is a position in a feed. feed.readersMu guards the fields that change.
type reader struct {
	tenant string
	ids    map[string]struct{} // nil for all conversations of the tenant
	wake   chan struct{}       // receives a value when there may be new entries
	// wakeOnly readers are woken by each change and read no entries.
	wakeOnly bool

	position uint64 // the reader has passed the entries up to this position
	// idle readers have passed all entries of which they were notified. Newer entries are not for
	// them, or the notification is still to come. An idle reader cannot miss entries.
	idle      bool
	idleIndex int // index in feed.idleByTenant, if the reader is idle and has no ids
}

func newReader(tenant string, ids []string, woken chan struct{}) *reader {
	r := &reader{tenant: tenant, wake: woken}
	if len(ids) > 0 {
		r.ids = make(map[string]struct{}, len(ids))
		for _, id := range ids {
			r.ids[id] = struct{}{}
		}
	}
	return r
}

func (r *reader) wants(e *entry) bool {
	if e.conversation.tenant != r.tenant {
		return false
	}
	_, named := r.ids[e.conversation.id]
	return named || r.ids == nil
}

// add appends entries and starts the notification of readers. It does not wait for readers.
func (f *feed) add(entries ...*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range entries {
		e.position = f.last.Add(1)
		f.retained = append(f.retained, e)
		f.bytes += e.size
		f.trimLocked()
	}
	// The caller is the store's writer, and there may be thousands of readers to wake: notify them
	// in another goroutine.
	if !f.notifying && f.readers.Load() > 0 {
		f.notifying = true
		go f.notify(math.MaxInt)
	}
}

// trimLocked drops the oldest entries above the limits. The caller holds mu. trimLocked releases mu
// to notify readers of an entry before it drops the entry; otherwise an idle reader would receive a
// GAP without having missed an entry.
func (f *feed) trimLocked() {
	for len(f.retained) > f.maxEntries || f.bytes > f.maxBytes && len(f.retained) > 1 {
		if oldest := f.retained[0]; oldest.position <= f.notified.Load() || f.readers.Load() == 0 {
			f.bytes -= oldest.size
			f.retained[0] = nil
			f.retained = f.retained[1:]
			continue
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

	spans := make(map[string]positions) // by tenant: readers of complete tenants are notified once
	for _, e := range entries {
		of, ok := spans[e.conversation.tenant]
		if !ok {
			of.first = e.position
		}
		of.last = e.position
		spans[e.conversation.tenant] = of
		for r := range f.byConversation[e.conversation] {
			if r.wakeOnly || r.notify(positions{e.position, e.position}) {
				wake = append(wake, r.wake)
			}
		}
	}
	for tenant, of := range spans {
		wake = f.notifyIdle(tenant, of, wake)
	}
	f.notified.Store(entries[len(entries)-1].position)
	return wake, true
}

// positions is a range of positions, both inclusive.
type positions struct{ first, last uint64 }

// notifyIdle notifies the idle readers of a complete tenant. Readers that may have new entries are
// no longer idle.
func (f *feed) notifyIdle(tenant string, of positions, wake []chan struct{}) []chan struct{} {
	all := f.idleByTenant[tenant]
	still := all[:0]
	for _, r := range all {
		if r.notify(of) {
			wake = append(wake, r.wake)
		} else {
			r.idleIndex = len(still)
			still = append(still, r)
		}
	}
	clear(all[len(still):])
	if f.idleByTenant[tenant] = still; len(still) == 0 {
		delete(f.idleByTenant, tenant)
	}
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
		r.idleIndex = len(f.idleByTenant[r.tenant])
		f.idleByTenant[r.tenant] = append(f.idleByTenant[r.tenant], r)
	}
}

// setActive makes a reader active. The caller holds readersMu.
func (f *feed) setActive(r *reader) {
	if r.idle && r.ids == nil {
		all := f.idleByTenant[r.tenant]
		end := len(all) - 1
		all[r.idleIndex], all[end].idleIndex = all[end], r.idleIndex
		all[end] = nil
		if f.idleByTenant[r.tenant] = all[:end]; end == 0 {
			delete(f.idleByTenant, r.tenant)
		}
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
		of := conversation{r.tenant, id}
		if f.byConversation[of] == nil {
			f.byConversation[of] = make(map[*reader]struct{})
		}
		f.byConversation[of][r] = struct{}{}
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
		of := conversation{r.tenant, id}
		delete(f.byConversation[of], r)
		if len(f.byConversation[of]) == 0 {
			delete(f.byConversation, of)
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
