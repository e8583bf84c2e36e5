package watch

import (
	"slices"
	"sync"
	"sync/atomic"
)

// The most entries that are looked at under a lock, so that writers never wait for long.
const maxLooks = 1024

type conversation struct{ tenant, id string }

// feed is a run of entries, of which the newest are kept, and those who read it. Entries
// have positions, from 1.
type feed struct {
	maxEntries, maxBytes int
	readers              atomic.Int64
	told                 atomic.Uint64 // position up to which readers know of entries; reading guards its rise

	mu      sync.Mutex // guards what writers need
	kept    []*entry
	last    uint64 // position of the newest entry
	bytes   int
	telling bool // a goroutine is at tell

	reading  sync.Mutex // guards the readers; taken ahead of mu
	byTenant map[string][]*reader
	byID     map[conversation]map[*reader]struct{}
}

func newFeed(maxEntries, maxBytes int) *feed {
	return &feed{
		maxEntries: maxEntries, maxBytes: maxBytes,
		byTenant: make(map[string][]*reader), byID: make(map[conversation]map[*reader]struct{}),
	}
}

// reader is a place in a feed. The feed's reading guards what changes.
type reader struct {
	tenant string
	ids    map[string]struct{} // nil: all of the tenant
	woken  chan struct{}       // gets a value when there may be more to read
	// wakeOnly: it is woken by every change, and reads none.
	wakeOnly bool

	position uint64 // of the last entry that it has passed
	// idle: it has passed all entries that it was told of; what was added since is either
	// not for it or not told of yet. An idle reader cannot fall behind.
	idle bool
	slot int // in feed.byTenant
}

func newReader(tenant string, ids []string, woken chan struct{}) *reader {
	r := &reader{tenant: tenant, woken: woken}
	if len(ids) > 0 {
		r.ids = make(map[string]struct{}, len(ids))
		for _, id := range ids {
			r.ids[id] = struct{}{}
		}
	}
	return r
}

func (r *reader) wants(e *entry) bool {
	if e.of.tenant != r.tenant {
		return false
	}
	_, named := r.ids[e.of.id]
	return named || r.ids == nil
}

// add takes the next entries and has the readers told of them.
func (f *feed) add(entries ...*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range entries {
		f.last++
		e.position = f.last
		f.kept = append(f.kept, e)
		f.bytes += e.size
		f.trim()
	}
	// Not in this goroutine, which is the store's writer: there may be thousands to wake.
	if !f.telling && f.readers.Load() > 0 {
		f.telling = true
		go f.tell()
	}
}

// trim drops the oldest entries beyond the limits. Under mu, which it lets go of where
// readers must be told of an entry before it is dropped: a GAP is only for those who wanted
// something of it.
func (f *feed) trim() {
	for len(f.kept) > f.maxEntries || f.bytes > f.maxBytes && len(f.kept) > 1 {
		if oldest := f.kept[0]; oldest.position <= f.told.Load() || f.readers.Load() == 0 {
			f.bytes -= oldest.size
			f.kept[0] = nil
			f.kept = f.kept[1:]
			continue
		}
		f.mu.Unlock()
		f.tell()
		f.mu.Lock()
	}
}

// end is the position of the newest entry.
func (f *feed) end() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// listened reports whether there are readers.
func (f *feed) listened() bool { return f.readers.Load() > 0 }

// after returns entries behind a position, and whether those right behind it are kept no
// more. Under mu.
func (f *feed) after(position uint64) (entries []*entry, lost bool) {
	behind := f.last - position
	if behind > uint64(len(f.kept)) {
		return nil, true
	}
	entries = f.kept[uint64(len(f.kept))-behind:]
	return entries[:min(len(entries), maxLooks)], false
}

// tell tells the readers of what was added, until there is no more.
func (f *feed) tell() {
	var wake []chan struct{}
	for more := true; more; {
		wake, more = f.tellSome(wake[:0])
		for _, woken := range wake {
			select {
			case woken <- struct{}{}:
			default: // It has been woken and not looked yet.
			}
		}
	}
}

// tellSome tells of some entries, and returns whom to wake.
func (f *feed) tellSome(wake []chan struct{}) (_ []chan struct{}, more bool) {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.mu.Lock()
	entries, _ := f.after(f.told.Load())
	if len(entries) == 0 {
		f.telling = false
		f.mu.Unlock()
		return wake, false
	}
	entries = slices.Clone(entries)
	f.mu.Unlock()

	spans := make(map[string]span) // of the tenants: their readers are many, and told once
	for _, e := range entries {
		of, ok := spans[e.of.tenant]
		if !ok {
			of.first = e.position
		}
		of.last = e.position
		spans[e.of.tenant] = of
		for r := range f.byID[e.of] {
			wake = r.tell(span{e.position, e.position}, wake)
		}
	}
	for tenant, of := range spans {
		for _, r := range f.byTenant[tenant] {
			wake = r.tell(of, wake)
		}
	}
	f.told.Store(entries[len(entries)-1].position)
	return wake, true
}

// span is the positions from an entry to a later one.
type span struct{ first, last uint64 }

// tell notes that the first and the last of some entries may be for the reader.
func (r *reader) tell(of span, wake []chan struct{}) []chan struct{} {
	switch {
	case r.wakeOnly:
	case !r.idle || of.last <= r.position:
		return wake // It is reading, or has read that.
	default:
		r.position, r.idle = max(r.position, of.first-1), false
	}
	return append(wake, r.woken)
}

// join adds a reader, which goes on from what the feed has come to; it returns that position.
func (f *feed) join(r *reader) (position uint64) {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.readers.Add(1) // Ahead of the look at the end: what is added behind it is told.
	position = f.end()
	r.position, r.idle = position, true
	if len(f.byTenant) == 0 && len(f.byID) == 0 {
		f.told.Store(position) // Nobody was told while there was nobody.
	}
	if r.ids == nil {
		r.slot = len(f.byTenant[r.tenant])
		f.byTenant[r.tenant] = append(f.byTenant[r.tenant], r)
		return position
	}
	for id := range r.ids {
		of := conversation{r.tenant, id}
		if f.byID[of] == nil {
			f.byID[of] = make(map[*reader]struct{})
		}
		f.byID[of][r] = struct{}{}
	}
	return position
}

// rewind takes a reader that has joined back to an earlier position, if all that came after
// it is kept.
func (f *feed) rewind(r *reader, position uint64) bool {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last-position > uint64(len(f.kept)) {
		return false
	}
	r.position, r.idle = position, false
	return true
}

// part removes a reader.
func (f *feed) part(r *reader) {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.readers.Add(-1)
	if r.ids == nil {
		readers := f.byTenant[r.tenant]
		last := readers[len(readers)-1]
		readers[r.slot], last.slot = last, r.slot
		readers[len(readers)-1] = nil
		if f.byTenant[r.tenant] = readers[:len(readers)-1]; len(readers) == 1 {
			delete(f.byTenant, r.tenant)
		}
		return
	}
	for id := range r.ids {
		of := conversation{r.tenant, id}
		delete(f.byID[of], r)
		if len(f.byID[of]) == 0 {
			delete(f.byID, of)
		}
	}
}

// batch is what a reader gets at a time.
type batch struct {
	entries []*entry
	// position: all entries up to there were returned or are not for the reader.
	position uint64
	lost     bool // some are kept no more; the reader stands at the end
	more     bool // there are more to look at, of those asked for
	idle     bool // there are no more at all: the reader will be woken
}

// next returns entries for a reader, up to a position.
func (f *feed) next(r *reader, through uint64) batch {
	f.reading.Lock()
	defer f.reading.Unlock()
	if r.idle {
		r.position = max(r.position, f.told.Load()) // What it was not woken for is not for it.
		if through <= r.position {
			return batch{position: r.position, idle: true}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	behind, lost := f.after(r.position)
	if lost {
		r.position, r.idle = f.last, true
		return batch{position: r.position, lost: true, idle: true}
	}
	var b batch
	for _, e := range behind {
		if e.position > through {
			break
		}
		if r.position = e.position; r.wants(e) {
			b.entries = append(b.entries, e)
		}
	}
	r.idle = r.position == f.last
	b.position, b.more, b.idle = r.position, r.position < min(through, f.last), r.idle
	return b
}
