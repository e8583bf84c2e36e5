package watch

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// maxLooks is how many entries are looked at under a lock at a time, so that writers never
// wait for long. A reader is handed maxBatchBytes, since it may be slow and holds them
// meanwhile.
const (
	maxScanned    = 1024
	maxBatchBytes = 32 << 10
)

type conversation struct{ tenant, id string }

// feed is a run of entries, of which the newest are kept, and those who read it. Entries
// have positions, from 1.
type feed struct {
	maxEntries, maxBytes int
	readers              atomic.Int64
	last                 atomic.Uint64 // position of the newest entry; rises under mu
	notified             atomic.Uint64 // position up to which readers know of entries; rises under reading

	mu        sync.Mutex // guards what writers need
	retained  []*entry
	bytes     int
	notifying bool // a goroutine is at tell

	readersMu sync.Mutex // guards the readers; taken ahead of mu
	// idle are those of all of a tenant that are idle: of the others there may be thousands
	// that are slow, and need not be told.
	idleByTenant map[string][]*reader
	// byID are those that name the conversation.
	byConversation map[conversation]map[*reader]struct{}
}

func newFeed(maxEntries, maxBytes int) *feed {
	return &feed{
		maxEntries: maxEntries, maxBytes: maxBytes,
		idleByTenant: make(map[string][]*reader), byConversation: make(map[conversation]map[*reader]struct{}),
	}
}

// reader is a place in a feed. The feed's reading guards what changes.
type reader struct {
	tenant string
	ids    map[string]struct{} // nil: all of the tenant
	wake   chan struct{}       // gets a value when there may be more to read
	// wakeOnly: it is woken by every change, and reads none.
	wakeOnly bool

	position uint64 // of the last entry that it has passed
	// idle: it has passed all entries that it was told of; what was added since is either
	// not for it or not told of yet. An idle reader cannot fall behind.
	idle      bool
	idleIndex int // in feed.idle, if it is idle and of all
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

// add takes the next entries and has the readers told of them. It waits for no reader.
func (f *feed) add(entries ...*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range entries {
		e.position = f.last.Add(1)
		f.retained = append(f.retained, e)
		f.bytes += e.size
		f.trimLocked()
	}
	// Not in this goroutine, which is the store's writer: there may be thousands to wake.
	if !f.notifying && f.readers.Load() > 0 {
		f.notifying = true
		go f.notify(math.MaxInt)
	}
}

// trim drops the oldest entries beyond the limits. Under mu, which it lets go of where
// readers must be told of an entry before it is dropped: an idle one would else get a GAP
// although nothing is lost that it wanted.
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

// end is the position of the newest entry.
func (f *feed) end() uint64 { return f.last.Load() }

// listened reports whether there are readers.
func (f *feed) hasReaders() bool { return f.readers.Load() > 0 }

// after returns entries behind a position, and whether those right behind it are kept no
// more. Under mu.
func (f *feed) entriesAfterLocked(position uint64) (entries []*entry, lost bool) {
	behind := f.last.Load() - position
	if behind > uint64(len(f.retained)) {
		return nil, true
	}
	entries = f.retained[uint64(len(f.retained))-behind:]
	return entries[:min(len(entries), maxScanned)], false
}

// tell tells the readers of what was added, so many times maxLooks entries at most.
func (f *feed) notify(batches int) {
	var wake []chan struct{}
	for more := true; more && batches > 0; batches-- {
		wake, more = f.notifyBatch(wake[:0])
		for _, woken := range wake {
			select {
			case woken <- struct{}{}:
			default: // It has been woken and not looked yet.
			}
		}
	}
}

// tellSome tells of some entries, and returns whom to wake.
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

	spans := make(map[string]positions) // of tenants: the readers of all are told once
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

// span is the positions from an entry to a later one.
type positions struct{ first, last uint64 }

// tellIdle tells the readers of all of a tenant; those that have to look are idle no more.
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

// tell notes that the first and the last of some entries may be for the reader, and reports
// whether that is news to it.
func (r *reader) notify(of positions) bool {
	if !r.idle || of.last <= r.position {
		return false // It is reading, or has read that.
	}
	r.position, r.idle = max(r.position, of.first-1), false
	return true
}

// rest makes a reader idle. Under reading.
func (f *feed) setIdle(r *reader) {
	if r.idle = true; r.ids == nil {
		r.idleIndex = len(f.idleByTenant[r.tenant])
		f.idleByTenant[r.tenant] = append(f.idleByTenant[r.tenant], r)
	}
}

// rouse makes a reader idle no more. Under reading.
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

// join adds a reader, which goes on from what the feed has come to; it returns that position.
func (f *feed) addReader(r *reader) (position uint64) {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	first := f.readers.Add(1) == 1 // Ahead of the look at the end: what is added behind it is told.
	position = f.last.Load()
	if first {
		f.notified.Store(position) // Nobody was told while there was nobody.
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

// rewind takes a reader that has joined back to an earlier position, if all that came after
// it is kept.
func (f *feed) rewind(r *reader, position uint64) bool {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, lost := f.entriesAfterLocked(position); lost {
		return false
	}
	f.setActive(r)
	r.position = position
	return true
}

// part removes a reader.
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

// batch is what a reader gets at a time.
type batch struct {
	entries []*entry
	// position: all entries up to there were returned or are not for the reader.
	position uint64
	gap      bool // some are kept no more; the reader stands at the end
	more     bool // there are more to look at, of those asked for
	idle     bool // there are no more at all: the reader will be woken
}

// next returns entries for a reader, up to a position. Behind those it goes on to the next one
// that is for the reader, wherever that is: while the reader is slow, what is for others may
// be dropped.
func (f *feed) next(r *reader, through uint64) batch {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	if r.idle {
		r.position = max(r.position, f.notified.Load()) // What it was not woken for is not for it.
		if through <= r.position {
			return batch{position: r.position, idle: true}
		}
		f.setActive(r)
	}
	var b batch
	for size := 0; ; {
		behind, lost := f.entriesAfter(r.position)
		if lost && len(b.entries) > 0 { // First these, then the GAP.
			b.position, b.more = r.position, true
			return b
		}
		if lost {
			b.gap, r.position = true, f.end()
		}
		if len(behind) == 0 {
			f.setIdle(r)
			b.position, b.idle = r.position, true
			return b
		}
		for _, e := range behind {
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

// look is after for whoever does not hold mu.
func (f *feed) entriesAfter(position uint64) (entries []*entry, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, lost = f.entriesAfterLocked(position)
	return slices.Clone(entries), lost
}
