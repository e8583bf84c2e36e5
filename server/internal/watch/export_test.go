package watch

import "math"

// MaxWatchedIDs limits the ids that all watchers name together.
const MaxWatchedIDs = maxWatchedIDs

// NewSmall returns a hub that retains at most count changes, as many events, and this number of bytes of each.
func NewSmall(o Options, count, bytes int) *Hub {
	h := New(o)
	for _, b := range []**budget{&h.changes, &h.records, &h.events} {
		*b = &budget{maxEntries: count, maxBytes: bytes}
	}
	return h
}

// Retained returns the number of retained changes and events and their counted bytes.
func (h *Hub) Retained() (changes, changeBytes, events, eventBytes int) {
	count := func(b *budget) (int, int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.entries, b.bytes
	}
	changes, changeBytes = count(h.changes)
	events, eventBytes = count(h.events)
	return changes, changeBytes, events, eventBytes
}

// RetainedOf returns the number of retained changes of a tenant.
func (h *Hub) RetainedOf(tenant string) int {
	t := h.acquire(tenant)
	defer h.release(t)
	t.changes.mu.Lock()
	defer t.changes.mu.Unlock()
	return len(t.changes.retained)
}

// Tenants returns the number of tenants that have feeds.
func (h *Hub) Tenants() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tenants)
}

// Readers returns the number of keys under which readers are found, and of the readers under them.
func (h *Hub) Readers() (keys, readers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tenants {
		for _, f := range []*feed{t.changes, t.records, t.events} {
			f.readersMu.Lock()
			keys += len(f.byID)
			readers += len(f.idle)
			for _, all := range f.byID {
				readers += len(all)
			}
			f.readersMu.Unlock()
		}
	}
	return keys, readers
}

// DelayNotifications delays the notification of readers of a tenant's changes, as a busy scheduler would,
// until the returned function is called.
func (h *Hub) DelayNotifications(tenant string) (notify func()) {
	t := h.acquire(tenant)
	t.changes.mu.Lock()
	defer t.changes.mu.Unlock()
	t.changes.notifying = true
	return func() {
		go t.changes.notify(math.MaxInt)
		h.release(t)
	}
}

// NewForgetful returns a hub that remembers at most count endings of at most bytes bytes.
func NewForgetful(count, bytes int) *Hub {
	h := New(Options{})
	h.endings = newEndings(count, bytes)
	return h
}

// Endings returns the number of remembered endings, of tenants with endings, and the counted bytes.
func (h *Hub) Endings() (endings, tenants, bytes int) {
	h.endings.mu.Lock()
	defer h.endings.mu.Unlock()
	return h.endings.inOrder.Len(), len(h.endings.tenants), h.endings.bytes
}
