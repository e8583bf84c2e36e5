package watch

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/parleyhq/parley/store"
)

// tenant has the feeds of one tenant. Hub.mu guards users and watchers; the other fields never change.
type tenant struct {
	name string
	// origin identifies these feeds in cursors with positions: the start of the server, the tenant, and how many tenants
	// the hub had removed before. A cursor with another origin has an unknown position, because each feed counts
	// positions from 1.
	origin [8]byte
	// changes and records come from the store, events from turns. Cursors contain positions of changes and records.
	changes, records, events *feed

	users    int // number of calls that use the tenant, watchers included
	watchers int // number of watchers and subscribers
}

// acquire returns the feeds of a tenant. The caller must call release.
func (h *Hub) acquire(name string) *tenant {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tenants[name]
	if t == nil {
		start := h.start(name)
		t = &tenant{
			name: name, origin: h.origin(name), changes: newFeed(name, h.changes, start),
			records: newFeed(name, h.records, start), events: newFeed(name, h.events, store.Place{}),
		}
		h.tenants[name] = t
	}
	t.users++
	return t
}

// release ends the use of a tenant. A tenant that is not in use and has no entries is removed: it had no
// changes, or the hub has dropped all of them for those of other tenants.
func (h *Hub) release(t *tenant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.users--
	h.removeIfUnused(t)
}

// removeIfUnused removes a tenant that is not in use and has no entries. The caller holds mu.
func (h *Hub) removeIfUnused(t *tenant) {
	if t.users == 0 && h.changes.isEmpty(t.changes) && h.records.isEmpty(t.records) && h.events.isEmpty(t.events) &&
		h.tenants[t.name] == t {
		delete(h.tenants, t.name)
		end := t.end()
		if end != (place{}) { // Otherwise the place in its cursors is 0, as in those of its successor.
			h.removed++
		}
		if start := h.start(t.name); start.Epoch != "" && later(end.shared, start) != start {
			bucket, _ := h.order.Since(t.name)
			h.forgotten[bucket] = end.shared
		}
	}
}

// start returns the place in the store after which a tenant without feeds is known to have had no changes. It is the
// same for all tenants of a bucket, because it depends only on the GAPs of the bucket and on the tenants that were
// removed. The caller holds mu.
func (h *Hub) start(name string) store.Place {
	if h.order == nil {
		return store.Place{}
	}
	bucket, since := h.order.Since(name)
	if last := h.forgotten[bucket]; last.Epoch == since.Epoch && last.Compare(since) > 0 {
		return last
	}
	return since
}

// origin returns the origin of the feeds that a tenant would get now. The caller holds mu.
func (h *Hub) origin(name string) [8]byte {
	b := binary.BigEndian.AppendUint64(h.secret[:len(h.secret):len(h.secret)], h.removed)
	sum := sha256.Sum256(append(b, name...))
	return [8]byte(sum[:])
}

// Cursor returns the current end of a tenant's changes. A client that gets the cursor, then reads the
// store, then watches from the cursor misses no change. Changes of other tenants do not affect it.
func (h *Hub) Cursor(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tenants[name]; t != nil {
		return t.cursor(t.end())
	}
	return encodeCursor(h.origin(name), name, place{shared: h.start(name)})
}
