package watch

import (
	"sort"

	"github.com/parleyhq/parley/store"
)

// endPlace returns the position of the newest entry and its place in the store.
func (f *feed) endPlace() (uint64, store.Place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last.Load(), f.newest
}

// restart records that changes up to a place in the store were missed.
func (f *feed) restart(at store.Place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = later(f.newest, at)
	f.start, f.startAt = f.newest, f.last.Load()
}

// positionOf returns the position that corresponds to a place in the store: the entries after both are the same. ok is
// false if not all of these entries are retained, or if this is not known. The caller holds mu.
func (f *feed) positionOf(at store.Place) (position uint64, ok bool) {
	if at.Epoch != f.start.Epoch || at.Compare(f.start) < 0 {
		return 0, false
	}
	entries := f.retained[uint64(len(f.retained))-(f.last.Load()-f.startAt):]
	n := sort.Search(len(entries), func(i int) bool { return entries[i].shared.Compare(at) > 0 })
	return f.startAt + uint64(n), true
}

// rewindTo moves a new reader to a place in the store and returns its position. ok reports whether all entries after
// the place are retained or will still be added.
func (f *feed) rewindTo(r *reader, at store.Place) (position uint64, ok bool) {
	f.readersMu.Lock()
	defer f.readersMu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if position, ok = f.positionOf(at); ok {
		f.setActive(r)
		r.position, r.after = position, at
	}
	return position, ok
}
