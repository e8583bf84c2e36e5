// Package watch tells waiting readers what has been committed. Begin with [Hub].
package watch

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"sync"

	"github.com/parleyhq/parley/store"
)

// Hub takes the store's changes and wakes whoever waits for them. A waiting reader costs
// its own goroutine and one map entry; nobody polls.
type Hub struct {
	// start names this run of the server in cursors: positions are counted anew in each.
	start [8]byte

	mu       sync.Mutex
	position uint64
	waiting  map[conversation]map[chan struct{}]struct{}
	watchers int
}

type conversation struct{ tenant, id string }

// New returns a hub that has seen no change.
func New() *Hub {
	h := &Hub{waiting: make(map[conversation]map[chan struct{}]struct{})}
	_, _ = rand.Read(h.start[:]) // never fails, see crypto/rand
	return h
}

// Committed takes the next changes, in the order of commit. It is the store's observer and
// does not block.
func (h *Hub) Committed(changes []store.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.position += uint64(len(changes))
	for i := range changes {
		key := conversation{changes[i].Tenant, changes[i].ConversationID}
		for woken := range h.waiting[key] {
			select {
			case woken <- struct{}{}:
			default: // It has been woken and not looked yet.
			}
		}
	}
}

// Cursor names the point that the hub has come to: whoever takes it before reading the
// store and watches from it on misses nothing.
func (h *Hub) Cursor() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(h.start[:len(h.start):len(h.start)], h.position))
}

// Subscribe returns a channel that gets a value after changes of a conversation, one for
// any number of them. Read the conversation after subscribing, then wait. Stop ends it.
func (h *Hub) Subscribe(tenant, id string) (changed <-chan struct{}, stop func()) {
	key, woken := conversation{tenant, id}, make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[key] == nil {
		h.waiting[key] = make(map[chan struct{}]struct{})
	}
	h.waiting[key][woken] = struct{}{}
	h.watchers++
	return woken, sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting[key], woken)
		if len(h.waiting[key]) == 0 {
			delete(h.waiting, key)
		}
		h.watchers--
	})
}

// Watchers counts the subscriptions that there are.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}
