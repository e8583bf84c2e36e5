// Package watch tells whoever waits what has been committed, and what is happening in
// turns. Begin with [Hub]: the store's observer and the turns feed it, [Hub.Watch] follows
// all changes of some conversations or of all, [Hub.Subscribe] waits for one conversation.
//
// What has happened is kept for a while, once for everybody (feed.go), and a watcher is a
// place in it (watcher.go): one that is slow costs no more than one that is not, and one
// whose place is no longer kept is told so. Nobody polls, and writers wait for no watcher:
// they add to the feed, and a goroutine of the feed wakes those who wait.
package watch

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// What is kept, over all tenants: for watchers to take up again, and for slow ones.
const (
	maxChanges     = 10_000
	maxChangeBytes = 16 << 20
	maxEvents      = 10_000
	maxEventBytes  = 4 << 20
)

const (
	// defaultMaxWatchers is Options.MaxWatchers unless set.
	defaultMaxWatchers = 10_000
	// maxWatchedIDs bounds the ids that all watchers name together: each takes about 350 bytes,
	// with events of turns twice as many. Those who wait for one conversation do not count.
	maxWatchedIDs = 200_000
)

// What a Hub may answer.
var (
	// ErrTooMany says that as many watch and wait as may.
	ErrTooMany = errors.New("too many watchers")
	// ErrCursor says that no hub has given the cursor.
	ErrCursor = errors.New("malformed cursor")
)

// Options of a Hub. The zero value is usable.
type Options struct {
	// MaxWatchers is how many may watch and wait at once, over all tenants; 0 is 10,000.
	MaxWatchers int
}

// Hub knows what has happened lately, and wakes those who wait for more.
type Hub struct {
	options Options
	// start names this run of the server in cursors: positions are counted anew in each.
	serverStart [8]byte
	// changes are those of the store; events are of turns and not in any cursor.
	changes, events *feed

	mu       sync.Mutex
	watchers int
	ids      int // that they name
}

// New returns a hub that has seen nothing.
func New(o Options) *Hub {
	if o.MaxWatchers == 0 {
		o.MaxWatchers = defaultMaxWatchers
	}
	h := &Hub{options: o, changes: newFeed(maxChanges, maxChangeBytes), events: newFeed(maxEvents, maxEventBytes)}
	_, _ = rand.Read(h.serverStart[:]) // never fails, see crypto/rand
	return h
}

// Committed takes the next changes, in the order of commit. It is the store's observer and
// waits for no watcher.
func (h *Hub) Committed(changes []store.Change) {
	entries := make([]*entry, len(changes))
	for i := range changes {
		entries[i] = changeEntry(&changes[i])
	}
	h.changes.add(entries...)
}

// Listening reports whether anybody wants TurnEvents.
func (h *Hub) HasSubscribers() bool { return h.events.hasReaders() }

// TurnEvent takes the next event of a turn, which is not to be changed any more. It waits
// for no watcher.
func (h *Hub) TurnEvent(tenant, conversationID string, event *parleyv1.TurnEvent) {
	h.events.add(eventEntry(tenant, conversationID, event, h.changes.end(), time.Now()))
}

// Cursor names the point that the hub has come to: whoever takes it before reading the
// store and watches from it on misses nothing.
func (h *Hub) Cursor() string { return h.cursor(h.changes.end()) }

func (h *Hub) cursor(position uint64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(h.serverStart[:len(h.serverStart):len(h.serverStart)], position))
}

// position takes a cursor apart; known is false when it is from before the server's start.
func (h *Hub) position(cursor string) (position uint64, known bool, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) != len(h.serverStart)+8 {
		return 0, false, ErrCursor
	}
	if [8]byte(b) != h.serverStart {
		return 0, false, nil
	}
	position = binary.BigEndian.Uint64(b[len(h.serverStart):])
	if position > h.changes.end() {
		return 0, false, ErrCursor
	}
	return position, true, nil
}

// enter counts a watcher that names so many ids, if there is room for it.
func (h *Hub) register(ids int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers >= h.options.MaxWatchers || h.ids+ids > maxWatchedIDs {
		return ErrTooMany
	}
	h.watchers++
	h.ids += ids
	return nil
}

func (h *Hub) unregister(ids int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers--
	h.ids -= ids
}

// Watchers counts those who watch and wait.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}

// Subscribe returns a channel that gets a value after changes of a conversation, one for
// any number of them. Read the conversation after subscribing, then wait. Stop ends it.
func (h *Hub) Subscribe(tenant, id string) (changed <-chan struct{}, stop func(), err error) {
	if err := h.register(0); err != nil {
		return nil, nil, err
	}
	r := newReader(tenant, []string{id}, make(chan struct{}, 1))
	r.wakeOnly = true
	h.changes.addReader(r)
	return r.wake, sync.OnceFunc(func() {
		h.changes.removeReader(r)
		h.unregister(0)
	}), nil
}
