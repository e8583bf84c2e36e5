// Package watch sends committed changes and the events of turns to watchers.
//
// [Hub] receives them: it is the store's observer, and turns send their events to it. [Hub.Watch]
// follows the changes of some conversations or of a complete tenant. [Hub.Subscribe] waits for
// changes of one conversation.
//
// A hub has two feeds, one of changes and one of events (feed.go). A feed retains each entry once
// for all watchers. A watcher is a position in each feed (watcher.go), so a slow watcher costs no
// more than a fast one. If the entries after its position were dropped, it receives a GAP. Nothing
// polls, and writers do not wait for watchers: they append to a feed, and a goroutine of the feed
// wakes the watchers.
//
// Start at [Hub].
package watch

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Limits of the retained entries, over all tenants. They serve watchers that resume and slow
// watchers.
const (
	maxChanges     = 10_000
	maxChangeBytes = 16 << 20
	maxEvents      = 10_000
	maxEventBytes  = 4 << 20
)

const (
	// defaultMaxWatchers is the default of Options.MaxWatchers.
	defaultMaxWatchers = 10_000
	// maxWatchedIDs limits the ids that all watchers name together. Each id takes about 350 bytes,
	// twice as much with turn events. Subscribers do not count.
	maxWatchedIDs = 200_000
)

// Errors of a Hub.
var (
	// ErrTooMany reports that the limit of watchers and subscribers is reached.
	ErrTooMany = errors.New("too many watchers")
	// ErrCursor reports that a cursor does not come from a hub.
	ErrCursor = errors.New("malformed cursor")
)

// Options configures a Hub. The zero value is usable.
type Options struct {
	// MaxWatchers limits watchers and subscribers together, over all tenants. If 0, the limit is
	// 10,000.
	MaxWatchers int
}

// Hub retains recent changes and events, and wakes watchers.
type Hub struct {
	options Options
	// serverStart identifies this start of the server in cursors, since each start counts positions
	// from 1.
	serverStart [8]byte
	// changes come from the store, events from turns. Cursors contain positions of changes only.
	changes, events *feed

	mu       sync.Mutex
	watchers int
	ids      int // number of ids that watchers name
}

// New returns a hub without changes and events.
func New(o Options) *Hub {
	if o.MaxWatchers == 0 {
		o.MaxWatchers = defaultMaxWatchers
	}
	h := &Hub{options: o, changes: newFeed(maxChanges, maxChangeBytes), events: newFeed(maxEvents, maxEventBytes)}
	_, _ = rand.Read(h.serverStart[:]) // never fails, see crypto/rand
	return h
}

// Committed receives the next changes, in the order of commit. It is the store's observer. It does
// not wait for watchers.
func (h *Hub) Committed(changes []store.Change) {
	entries := make([]*entry, len(changes))
	for i := range changes {
		entries[i] = changeEntry(&changes[i])
	}
	h.changes.add(entries...)
}

// HasSubscribers reports whether a watcher wants turn events.
func (h *Hub) HasSubscribers() bool { return h.events.hasReaders() }

// TurnEvent receives the next event of a turn. The event must not be changed afterwards. TurnEvent
// does not wait for watchers.
func (h *Hub) TurnEvent(tenant, conversationID string, event *parleyv1.TurnEvent) {
	h.events.add(eventEntry(tenant, conversationID, event, h.changes.end(), time.Now()))
}

// Cursor returns the current end of the changes. A client that gets the cursor, then reads the
// store, then watches from the cursor misses no change.
func (h *Hub) Cursor() string { return h.cursor(h.changes.end()) }

func (h *Hub) cursor(position uint64) string {
	b := slices.Clip(h.serverStart[:]) // Clip, so that append copies.
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(b, position))
}

// position decodes a cursor. known is false if the cursor comes from an earlier start of the
// server.
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

// register counts a watcher with this number of ids. It returns ErrTooMany if a limit is reached.
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

// Watchers returns the number of watchers and subscribers.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}

// Subscribe returns a channel that receives a value after changes of a conversation, one value for
// any number of changes. Read the conversation after subscribing, then wait. stop ends the
// subscription.
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
