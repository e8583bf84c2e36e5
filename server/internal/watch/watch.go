// Package watch sends committed changes and the events of turns to watchers.
//
// [Hub] receives them: it is the store's observer, and turns send their events to it. [Hub.Watch]
// follows the changes of some conversations or of a complete tenant. [Hub.Subscribe] waits for
// changes of one conversation.
//
// Each tenant has three feeds: of changes, of changes of records, and of events (tenant.go, feed.go). A feed
// retains each entry once for all watchers. A watcher is a position in each feed that it reads (watcher.go), so a
// slow watcher costs no more than a fast one. If the entries after its position were dropped, it receives a GAP.
// Nothing polls, and writers do not wait for watchers: they append to a feed, and a goroutine of the feed
// wakes the watchers.
//
// Records have a feed of their own, because they may change much more often than anything else, and few watchers want
// them. So the others neither skip them nor receive a GAP because of them.
//
// All tenants share the memory for entries (budget.go), which each kind of feed has for itself. When it is full, the
// tenant that uses most of it loses its oldest entry. Positions are those of one tenant, so a cursor does not depend on
// the changes of others.
//
// A cursor contains positions, which are valid until the server ends, unless the store assigns each change a place that
// all its servers know (cursor.go). Then the cursor contains the place of the last change, and each feed knows the
// place from which on it has all changes. When a removed tenant is used again, its feeds start at the latest place of
// all removed tenants of its bucket, so its older cursors lead to a GAP.
//
// With several servers, [Hub.Events] returns the events of the turns of this server to another server, which passes
// them to its own hub (elsewhere.go).
//
// The hub also remembers for an hour which conversations have ended (ended.go), so that an error can say so.
//
// Start at [Hub].
package watch

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Limits of the retained entries of all tenants together. They serve watchers that resume and slow
// watchers.
const (
	maxChanges     = 10_000
	maxChangeBytes = 16 << 20
	maxRecords     = 10_000
	maxRecordBytes = 4 << 20
	maxEvents      = 10_000
	maxEventBytes  = 4 << 20
)

const (
	// defaultMaxWatchers is the default of Options.MaxWatchers.
	defaultMaxWatchers = 10_000
	// maxWatchedIDs limits the ids that all watchers name together. Each id takes about 350 bytes for
	// each feed that its watcher reads: changes, turn events, records. Subscribers do not count.
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
	// MaxOf returns the limit of watchers and subscribers of a tenant; 0 means no limit of its own. The
	// hub calls it for each new one, so its results may change. If nil, no tenant has a limit.
	MaxOf func(tenant string) int
}

// TenantLimitError means that a tenant has reached its limit of watchers and subscribers.
type TenantLimitError struct{ Limit int }

// Error returns the limit.
func (e *TenantLimitError) Error() string {
	return fmt.Sprintf("the tenant's limit of %d watches and waiting calls is reached", e.Limit)
}

// Hub retains recent changes and events, and wakes watchers.
type Hub struct {
	options Options
	// secret is random, so that clients cannot compute the origin of another tenant's cursors. It also
	// separates this start of the server from others.
	secret [32]byte
	// changes, records and events limit the feeds of all tenants.
	changes, records, events *budget
	eventReaders             atomic.Int64 // number of watchers that want turn events
	gaps                     atomic.Int64 // number of GAPs that watchers received
	endings                  *endings

	mu      sync.Mutex         // guards the following fields; lock it before that of a budget
	tenants map[string]*tenant // tenants that are in use or have entries
	order   store.Ordered      // nil if places of the store are not used
	// forgotten contains the place of the last change that was removed with its tenant, for each bucket of the store.
	forgotten map[int]store.Place
	removed   uint64 // number of tenants that were removed after they had changes
	watchers  int
	ids       int // number of ids that watchers name
}

// New returns a hub without changes and events.
func New(o Options) *Hub {
	if o.MaxWatchers == 0 {
		o.MaxWatchers = defaultMaxWatchers
	}
	if o.MaxOf == nil {
		o.MaxOf = func(string) int { return 0 }
	}
	h := &Hub{
		options: o, tenants: make(map[string]*tenant),
		changes: &budget{maxEntries: maxChanges, maxBytes: maxChangeBytes},
		records: &budget{maxEntries: maxRecords, maxBytes: maxRecordBytes},
		events:  &budget{maxEntries: maxEvents, maxBytes: maxEventBytes},
		endings: newEndings(maxEndings, maxEndingBytes), forgotten: make(map[int]store.Place),
	}
	_, _ = rand.Read(h.secret[:]) // never fails, see crypto/rand
	return h
}

// Committed receives the next changes, in the order of commit. It is the store's observer. It does
// not wait for watchers.
func (h *Hub) Committed(changes []store.Change) {
	h.endings.add(changes)
	for from := 0; from < len(changes); {
		if changes[from].Kind == parleyv1.ChangeKind_CHANGE_KIND_GAP {
			h.missed(time.Now())
			from++
			continue
		}
		name, ofRecords, through := changes[from].Tenant, isRecord(&changes[from]), from+1
		for through < len(changes) && changes[through].Tenant == name && isRecord(&changes[through]) == ofRecords {
			through++
		}
		t := h.acquire(name)
		feed, other := t.changes, t.records
		if ofRecords {
			feed, other = other, feed
		}
		entries := make([]*entry, through-from)
		for i := range entries {
			entries[i] = changeEntry(&changes[from+i], other.end())
		}
		h.removeEmptied(feed.add(entries...))
		h.release(t)
		from = through
	}
}

// Follow makes new cursors valid at all servers that have the store open. Without Follow, and while the store has no
// place, a cursor is valid only at this server, until the server ends. Call it before the first watcher starts.
func (h *Hub) Follow(o store.Ordered) {
	h.mu.Lock()
	h.order = o
	h.mu.Unlock()
	h.missed(time.Now()) // The existing feeds do not know from which place on they are complete.
}

// missed sends a GAP to all watchers of all tenants, and wakes all subscribers: the store has missed changes.
func (h *Hub) missed(now time.Time) {
	h.mu.Lock()
	h.removed++ // A cursor of a tenant without feeds is not followed by the GAP: it becomes unknown.
	type missing struct {
		*tenant
		through store.Place
	}
	var all []missing
	for _, t := range h.tenants {
		t.users++
		all = append(all, missing{t, h.start(t.name)})
	}
	h.mu.Unlock()
	for _, t := range all {
		t.records.restart(t.through)
		h.removeEmptied(t.changes.add(gapEntry(t.records.end(), t.through, now)))
		h.release(t.tenant)
	}
}

// removeEmptied removes the tenants of feeds that have lost their last entry.
func (h *Hub) removeEmptied(feeds []*feed) {
	if len(feeds) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range feeds {
		if t := h.tenants[f.tenant]; t != nil {
			h.removeIfUnused(t)
		}
	}
}

// HasSubscribers reports whether a watcher wants turn events.
func (h *Hub) HasSubscribers() bool { return h.eventReaders.Load() > 0 }

// TurnEvent receives the next event of a turn. The event must not be changed afterwards. TurnEvent
// does not wait for watchers. If no watcher of the tenant wants events, the event is not retained.
func (h *Hub) TurnEvent(tenant, conversationID string, event *parleyv1.TurnEvent) {
	t := h.acquire(tenant)
	defer h.release(t)
	if !t.events.hasReaders() {
		return
	}
	h.removeEmptied(t.events.add(eventEntry(conversationID, event, t.changes.end(), time.Now())))
	h.events.refund(t.events) // The last reader may have left in the meantime.
}

// register counts a watcher with this number of ids and returns its tenant. It returns an error if a limit
// is reached.
func (h *Hub) register(name string, ids int) (*tenant, error) {
	t := h.acquire(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if most := h.options.MaxOf(name); most > 0 && t.watchers >= most {
		err = &TenantLimitError{Limit: most}
	} else if h.watchers >= h.options.MaxWatchers || h.ids+ids > maxWatchedIDs {
		err = ErrTooMany
	}
	if err != nil {
		t.users--
		h.removeIfUnused(t)
		return nil, err
	}
	h.watchers++
	t.watchers++
	h.ids += ids
	return t, nil
}

func (h *Hub) unregister(t *tenant, ids int) {
	h.mu.Lock()
	h.watchers--
	t.watchers--
	h.ids -= ids
	h.mu.Unlock()
	h.release(t)
}

// Watchers returns the number of watchers and subscribers.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}

// Gaps returns the number of GAPs that watchers received since the start.
func (h *Hub) Gaps() int64 { return h.gaps.Load() }

// TenantWatchers returns the number of watchers and subscribers of a tenant.
func (h *Hub) TenantWatchers(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tenants[name]; t != nil {
		return t.watchers
	}
	return 0
}

// isRecord reports whether a change belongs to the feed of records.
func isRecord(c *store.Change) bool { return c.Kind == parleyv1.ChangeKind_CHANGE_KIND_RECORD }

// Subscribe returns a channel that receives a value after changes of a conversation, one value for
// any number of changes. Read the conversation after subscribing, then wait. stop ends the
// subscription.
func (h *Hub) Subscribe(tenant, id string) (changed <-chan struct{}, stop func(), err error) {
	t, err := h.register(tenant, 0)
	if err != nil {
		return nil, nil, err
	}
	wake := make(chan struct{}, 1)
	// A change of a record follows another change of the same version, so the feed of records need not be read.
	changes := newReader([]string{id}, wake)
	changes.wakeOnly = true
	t.changes.addReader(changes)
	return wake, sync.OnceFunc(func() {
		t.changes.removeReader(changes)
		h.unregister(t, 0)
	}), nil
}
