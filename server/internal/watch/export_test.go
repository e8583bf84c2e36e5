package watch

import "math"

// MaxWatchedIDs limits the ids that all watchers name together.
const MaxWatchedIDs = maxWatchedIDs

// NewSmall returns a hub whose feeds retain at most count entries and this number of bytes each.
func NewSmall(o Options, count, bytes int) *Hub {
	h := New(o)
	h.changes, h.events = newFeed(count, bytes), newFeed(count, bytes)
	return h
}

// Retained returns the number of retained changes and events and their counted bytes.
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

// Readers returns the number of keys under which readers are found, and of the readers under them.
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

// DelayNotifications delays the notification of readers of changes, as a busy scheduler would,
// until the returned function is called.
func (h *Hub) DelayNotifications() (notify func()) {
	h.changes.mu.Lock()
	defer h.changes.mu.Unlock()
	h.changes.notifying = true
	return func() { go h.changes.notify(math.MaxInt) }
}
