package watch

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
)

// tenant has the feeds of one tenant. Hub.mu guards users and watchers; the other fields never change.
type tenant struct {
	name string
	// origin identifies these feeds in cursors: the start of the server, the tenant, and how many tenants the
	// hub had removed before. A cursor with another origin has an unknown position, because each feed counts
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
		t = &tenant{
			name: name, origin: h.origin(name),
			changes: newFeed(name, h.changes), records: newFeed(name, h.records), events: newFeed(name, h.events),
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
		if t.end() != (place{}) { // Otherwise the place in its cursors is 0, as in those of its successor.
			h.removed++
		}
	}
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
	return encodeCursor(h.origin(name), place{})
}

// place is a place in the order of commits: the positions of the newest change and of the newest record before it. A
// position of 0 means none.
type place struct{ change, record uint64 }

// end returns the place after the newest commit. A commit during the call may be after it in one feed only, so that a
// watcher from there receives a part of the commit; it misses nothing.
func (t *tenant) end() place { return place{t.changes.end(), t.records.end()} }

func (t *tenant) cursor(at place) string { return encodeCursor(t.origin, at) }

// encodeCursor encodes a place. A cursor without a position of records means 0.
func encodeCursor(origin [8]byte, at place) string {
	b := binary.BigEndian.AppendUint64(origin[:len(origin):len(origin)], at.change)
	if at.record > 0 {
		b = binary.BigEndian.AppendUint64(b, at.record)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// place decodes a cursor. known is false if the cursor comes from another origin: an earlier start of the
// server, or another tenant.
func (t *tenant) place(cursor string) (at place, known bool, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) != len(t.origin)+8 && len(b) != len(t.origin)+16 {
		return place{}, false, ErrCursor
	}
	if [8]byte(b) != t.origin {
		return place{}, false, nil
	}
	positions := b[len(t.origin):]
	at.change = binary.BigEndian.Uint64(positions)
	if len(positions) > 8 {
		at.record = binary.BigEndian.Uint64(positions[8:])
	}
	if at.change > t.changes.end() || at.record > t.records.end() {
		return place{}, false, ErrCursor
	}
	return at, true, nil
}
