package watch

import "math"

// MaxWatchedIDs is how many ids all watchers may name together.
const MaxWatchedIDs = maxWatchedIDs

// NewSmall returns a hub that keeps so many changes, and as many events, and of each so many
// bytes.
func NewSmall(o Options, count, bytes int) *Hub {
	h := New(o)
	h.changes, h.events = newFeed(count, bytes), newFeed(count, bytes)
	return h
}

// Kept counts the changes and the events that are kept, and returns what is counted as their
// bytes.
func (h *Hub) Retained() (changes, changeBytes, events, eventBytes int) {
	count := func(f *feed) (int, int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.retained), f.bytes
	}
	changes, changeBytes = count(h.changes)
	events, eventBytes = count(h.events)
	return changes, changeBytes, events, eventBytes
}

// Readers counts the keys under which readers are found, and the readers under them.
func (h *Hub) Readers() (keys, readers int) {
	for _, f := range []*feed{h.changes, h.events} {
		f.readersMu.Lock()
		keys += len(f.idleByTenant) + len(f.byConversation)
		for _, all := range f.idleByTenant {
			readers += len(all)
		}
		for _, all := range f.byConversation {
			readers += len(all)
		}
		f.readersMu.Unlock()
	}
	return keys, readers
}

// DelayTelling keeps the readers of changes from being told of any, as a scheduler that has
// better things to do would, until the returned function is called.
func (h *Hub) DelayNotifications() (tell func()) {
	h.changes.mu.Lock()
	defer h.changes.mu.Unlock()
	h.changes.notifying = true
	return func() { go h.changes.notify(math.MaxInt) }
}
