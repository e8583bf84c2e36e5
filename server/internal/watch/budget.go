package watch

import (
	"container/heap"
	"sync"
)

// budget limits the entries that the feeds of all tenants retain together. When a limit is exceeded, the feed
// with the largest share drops its oldest entry. So a tenant with many changes shortens its own history, and not
// that of tenants with few.
type budget struct {
	maxEntries, maxBytes int

	mu             sync.Mutex // guards the following fields and the shares of the feeds
	entries, bytes int
	feeds          shareHeap // feeds with entries, the one with the largest share first
	charges        uint64    // number of calls of charge
}

// share is the part of a budget that a feed uses.
type share struct {
	entries, bytes int
	part           float64 // of the limit of which the feed uses the larger part
	charged        uint64  // budget.charges when entries were last added
	index          int     // in budget.feeds; -1 if the feed has no entries
}

// charge adds new entries of a feed to its share, and drops entries until the limits are met. The newest
// entry stays even if it is larger than the limit. charge returns the feeds that have no entries left.
func (b *budget) charge(f *feed, added []*entry) (emptied []*feed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charges++
	f.share.charged = b.charges
	bytes := 0
	for _, e := range added {
		bytes += e.size
	}
	b.change(f, len(added), bytes)
	for b.entries > b.maxEntries || b.bytes > b.maxBytes && b.entries > 1 {
		largest := b.feeds[0]
		b.change(largest, -1, -largest.dropOldest())
		if largest.share.entries == 0 {
			emptied = append(emptied, largest)
		}
	}
	return emptied
}

// refund drops all entries of a feed, unless it has readers.
func (b *budget) refund(f *feed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f.share.entries > 0 && !f.hasReaders() {
		b.change(f, -1, -f.dropOldest())
	}
}

// isEmpty reports whether a feed has no entries.
func (b *budget) isEmpty(f *feed) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return f.share.entries == 0
}

// change changes the share of a feed. The caller holds mu.
func (b *budget) change(f *feed, entries, bytes int) {
	b.entries, b.bytes = b.entries+entries, b.bytes+bytes
	s := &f.share
	s.entries, s.bytes = s.entries+entries, s.bytes+bytes
	s.part = max(float64(s.entries)/float64(b.maxEntries), float64(s.bytes)/float64(b.maxBytes))
	switch {
	case s.entries > 0 && s.index < 0:
		heap.Push(&b.feeds, f)
	case s.entries == 0 && s.index >= 0:
		heap.Remove(&b.feeds, s.index)
	case s.index >= 0:
		heap.Fix(&b.feeds, s.index)
	}
}

// shareHeap is a heap of feeds, see container/heap. Among feeds with equal shares, the one with the oldest newest
// entry comes first.
type shareHeap []*feed //nolint:recvcheck // as heap.Interface requires

// Len implements heap.Interface.
func (h shareHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h shareHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return a.share.part > b.share.part || a.share.part == b.share.part && a.share.charged < b.share.charged
}

// Swap implements heap.Interface.
func (h shareHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].share.index, h[j].share.index = i, j
}

// Push implements heap.Interface.
func (h *shareHeap) Push(x any) {
	f := x.(*feed) //nolint:errcheck,forcetypeassert // the heap contains nothing else
	f.share.index = len(*h)
	*h = append(*h, f)
}

// Pop implements heap.Interface.
func (h *shareHeap) Pop() any {
	end := len(*h) - 1
	f := (*h)[end]
	(*h)[end] = nil
	*h = (*h)[:end]
	f.share.index = -1
	return f
}
