package watch_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// modelEntry is a change or an event. Both have their own positions in each tenant, from 1.
type modelEntry struct {
	tenant, id string
	position   int
	after      int // of an event: the position of the newest change
}

// modelFeed has the entries of a tenant, dropped ones included.
type modelFeed struct {
	all     []modelEntry
	dropped int // number of entries that were dropped
}

// retained returns the number of entries that are retained.
func (f *modelFeed) retained() int { return len(f.all) - f.dropped }

// modelFeeds are the feeds of all tenants, which retain a limited number of entries together.
type modelFeeds map[string]*modelFeed

// add adds an entry. Above the limit it drops an entry of the tenant that has most; of the other tenant if both
// have as many.
func (m modelFeeds) add(h modelEntry, limit int) {
	m[h.tenant].all = append(m[h.tenant].all, h)
	most, other := m[h.tenant], m["t"]
	if h.tenant == "t" {
		other = m["u"]
	}
	if most.retained()+other.retained() > limit {
		if other.retained() >= most.retained() {
			most = other
		}
		most.dropped++
	}
}

// model performs each step on a hub and records what watchers must receive.
type model struct {
	*watch.Hub

	t       *testing.T
	limit   int // of retained changes, and of retained events
	changes modelFeeds
	events  modelFeeds
	all     []*modelWatcher
	cursors []modelCursor // that watchers have received
}

// modelCursor is a cursor of a tenant.
type modelCursor struct{ tenant, cursor string }

// end returns the position of the newest change of a watcher's tenant.
func (m *model) end(w *modelWatcher) int { return len(m.changes[w.options.Tenant].all) }

// modelWatcher is a client with the entries that it must still receive.
type modelWatcher struct {
	*client

	options     watch.Watch
	paused      bool
	started     bool         // it has received its first heartbeat
	gapExpected bool         // a GAP must come first
	changes     []modelEntry // to be received
	events      []modelEntry
	cursor      string // the last one received
	position    int    // of cursor
}

func (w *modelWatcher) wants(h modelEntry) bool {
	return h.tenant == w.options.Tenant && (len(w.options.ConversationIDs) == 0 ||
		slices.Contains(w.options.ConversationIDs, h.id))
}

// TestModel compares the hub with a simple model after random steps. A watcher receives each change
// and each event that it wants exactly once, in the order in which they happened, or a GAP in their
// place. It receives a GAP only if the next entry for it was dropped.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			// With at least as many entries as tenants, none of them loses its last entry.
			limit := rapid.IntRange(2, 6).Draw(rt, "limit")
			m := &model{
				Hub: watch.NewSmall(watch.Options{}, limit, 1<<30), t: t, limit: limit,
				changes: modelFeeds{"t": {}, "u": {}}, events: modelFeeds{"t": {}, "u": {}},
			}
			rt.Repeat(map[string]func(*rapid.T){
				"":       m.check,
				"commit": m.commitBatch,
				"event":  m.event,
				"watch":  m.startWatching,
				"resume": m.resume,
				"pause":  m.pauseReading,
				"read":   m.resumeReading,
				"end":    m.disconnect,
				"wait":   m.waitForHeartbeats,
			})
			for _, w := range m.all {
				m.disconnectWatcher(rt, w)
			}
			if keys, readers := m.Readers(); keys != 0 || readers != 0 || m.Watchers() != 0 {
				rt.Fatalf("%d keys, %d readers, %d watchers after the end, want none", keys, readers, m.Watchers())
			}
		})
	})
}

// bubble runs one case of a property in a synctest bubble.
func bubble(t *testing.T, rt *rapid.T, run func(t *testing.T)) {
	t.Helper()
	var failed any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failed = recover() }() // Pass the panic to rapid, which waits outside.
		run(t)
	})
	if fmt.Sprintf("%T", failed) == "rapid.invalidData" {
		rt.SkipNow() // Skip from another line: rapid distinguishes failures by line.
	}
	if failed != nil {
		panic(failed)
	}
}

func anyTenant(rt *rapid.T) string { return rapid.SampledFrom([]string{"t", "u"}).Draw(rt, "tenant") }

func anyID(rt *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "id") }

// commitBatch commits a batch that is not larger than the feed's limit.
func (m *model) commitBatch(rt *rapid.T) {
	batch := make([]store.Change, rapid.IntRange(1, m.limit).Draw(rt, "n"))
	for i := range batch {
		h := modelEntry{tenant: anyTenant(rt), id: anyID(rt)}
		h.position = len(m.changes[h.tenant].all) + 1
		batch[i] = appendedChange(h.tenant, h.id, int32(h.position), "")
		m.changes.add(h, m.limit)
		for _, w := range m.all {
			if w.wants(h) {
				w.changes = append(w.changes, h)
			}
		}
	}
	m.Committed(batch)
}

// event sends an event of a turn.
func (m *model) event(rt *rapid.T) {
	if !m.HasSubscribers() {
		rt.Skip("no watcher wants events")
	}
	h := modelEntry{tenant: anyTenant(rt), id: anyID(rt)}
	feed := m.events[h.tenant]
	h.position, h.after = len(feed.all)+1, len(m.changes[h.tenant].all)
	if m.wantsEvents(h.tenant) {
		m.events.add(h, m.limit)
	}
	for _, w := range m.all {
		if w.options.TurnEvents && w.wants(h) {
			w.events = append(w.events, h)
		}
	}
	m.TurnEvent(h.tenant, h.id, textEvent(int32(h.position)))
}

// wantsEvents reports whether a watcher of a tenant wants events.
func (m *model) wantsEvents(tenant string) bool {
	return slices.ContainsFunc(m.all, func(w *modelWatcher) bool {
		return w.options.TurnEvents && w.options.Tenant == tenant
	})
}

// startWatching starts a watcher without a cursor.
func (m *model) startWatching(rt *rapid.T) {
	m.addWatcher(watch.Watch{
		Tenant: anyTenant(rt), TurnEvents: rapid.Bool().Draw(rt, "turn events"),
		ConversationIDs: rapid.SampledFrom([][]string{nil, nil, {"a"}, {"b", "c"}, {"a", "a"}, {"nobody"}}).Draw(rt, "ids"),
	})
}

// resume starts a watcher from a cursor of any watcher, possibly one of another selection.
func (m *model) resume(rt *rapid.T) {
	if len(m.cursors) == 0 {
		rt.Skip("no cursor yet")
	}
	o := watch.Watch{
		Tenant: anyTenant(rt), TurnEvents: rapid.Bool().Draw(rt, "turn events"),
		ConversationIDs: rapid.SampledFrom([][]string{nil, {"a"}, {"b", "c"}}).Draw(rt, "ids"),
	}
	m.addWatcherFrom(o, rapid.SampledFrom(m.cursors).Draw(rt, "cursor"))
}

func (m *model) addWatcher(o watch.Watch) { m.addWatcherFrom(o, modelCursor{}) }

// addWatcherFrom starts a watcher from a cursor. The cursor of another tenant has an unknown position.
func (m *model) addWatcherFrom(o watch.Watch, cursor modelCursor) {
	o.Cursor = cursor.cursor
	w := &modelWatcher{options: o, client: startClient(m.t, m.Hub, o, nil)}
	w.position = m.end(w)
	m.all = append(m.all, w)
	if o.Cursor == "" {
		return
	}
	at, feed := position(m.t, o.Cursor), m.changes[o.Tenant]
	if w.gapExpected = cursor.tenant != o.Tenant || at < feed.dropped; w.gapExpected {
		return
	}
	w.position = at
	for _, h := range feed.all[at:] {
		if w.wants(h) {
			w.changes = append(w.changes, h)
		}
	}
}

func (m *model) pickWatcher(rt *rapid.T, stalled bool) *modelWatcher {
	var some []*modelWatcher
	for _, w := range m.all {
		if w.paused == stalled {
			some = append(some, w)
		}
	}
	if len(some) == 0 {
		rt.Skip("no such watcher")
	}
	return some[rapid.IntRange(0, len(some)-1).Draw(rt, "watcher")]
}

func (m *model) pauseReading(rt *rapid.T) {
	w := m.pickWatcher(rt, false)
	w.pauseReading()
	w.paused = true
}

func (m *model) resumeReading(rt *rapid.T) {
	w := m.pickWatcher(rt, true)
	w.resumeReading()
	w.paused = false
}

// disconnect disconnects a client, which may resume from its cursor.
func (m *model) disconnect(rt *rapid.T) {
	w := m.pickWatcher(rt, rapid.Bool().Draw(rt, "stalled"))
	m.disconnectWatcher(rt, w)
	m.all = slices.DeleteFunc(m.all, func(other *modelWatcher) bool { return other == w })
	if f := m.events[w.options.Tenant]; !m.wantsEvents(w.options.Tenant) {
		f.dropped = len(f.all)
	}
	if cursor := w.cursor; cursor != "" && rapid.Bool().Draw(rt, "resumes") {
		m.addWatcherFrom(w.options, modelCursor{w.options.Tenant, cursor})
	}
}

func (m *model) disconnectWatcher(rt *rapid.T, w *modelWatcher) {
	_ = w.disconnect()
	m.checkReceived(rt, w)
}

// waitForHeartbeats waits until heartbeats are due.
func (m *model) waitForHeartbeats(rt *rapid.T) {
	<-time.After(heartbeatInterval)
	m.check(rt)
	for i, w := range m.all {
		if !w.paused && w.position != m.end(w) {
			rt.Fatalf("watcher %d: position = %d after %d changes", i, w.position, m.end(w))
		}
	}
}

// check waits until all goroutines are blocked and checks what each client has received.
func (m *model) check(rt *rapid.T) {
	for i, w := range m.all {
		m.checkReceived(rt, w)
		if !w.paused && (!w.started || w.gapExpected || len(w.changes)+len(w.events) > 0) {
			rt.Fatalf("watcher %d has not received %v and %v", i, w.changes, w.events)
		}
	}
}

// checkReceived checks what a client has received.
func (m *model) checkReceived(rt *rapid.T, w *modelWatcher) {
	events := m.events[w.options.Tenant]
	for _, c := range w.received() {
		at := position(m.t, c.GetCursor())
		if at < w.position && w.cursor != "" {
			rt.Fatalf("cursor of %v moves back from %d to %d", c, w.position, at)
		}
		if !w.started && at != w.position {
			rt.Fatalf("%v: first position = %d, want %d", c, at, w.position)
		}
		if !w.started && (c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP) != w.gapExpected {
			rt.Fatalf("first response from cursor %[2]s = %[1]v, want a GAP: %[3]t", c, w.options.Cursor, w.gapExpected)
		}
		w.cursor, w.position = c.GetCursor(), at
		m.cursors = append(m.cursors, modelCursor{w.options.Tenant, c.GetCursor()})
		switch c.GetKind() {
		case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
			w.started = true
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			m.checkGap(rt, w)
		case parleyv1.ChangeKind_CHANGE_KIND_TURN:
			if after := events.all[c.GetTurnEvent().GetIndex()-1].after; len(w.changes) > 0 && w.changes[0].position <= after {
				rt.Fatalf("%v precedes %v, which happened earlier", c, w.changes[0])
			}
			w.events = next(rt, w.events, c, int(c.GetTurnEvent().GetIndex()))
		default:
			if e := w.events; len(e) > 0 && !events.isDropped(e) && e[0].after < int(c.GetVersion()) {
				rt.Fatalf("%v precedes %v, which happened earlier", c, e[0])
			}
			w.changes = next(rt, w.changes, c, int(c.GetVersion()))
		}
		// A watcher that resumes from this cursor must miss nothing.
		if len(w.changes) > 0 && w.changes[0].position <= at {
			rt.Fatalf("%v has cursor %d, before %v is received", c, at, w.changes[0])
		}
	}
}

// next checks that a change is the expected one and returns the following ones.
func next(rt *rapid.T, to []modelEntry, c *parleyv1.ConversationChange, position int) (rest []modelEntry) {
	if len(to) == 0 || to[0].id != c.GetConversationId() || to[0].position != position {
		rt.Fatalf("received %v, want the first of %v", c, to)
	}
	return to[1:]
}

// isDropped reports whether the next expected entry was dropped.
func (f *modelFeed) isDropped(to []modelEntry) bool {
	return len(to) > 0 && to[0].position <= f.dropped
}

// checkGap checks that an expected entry was dropped, and skips what the GAP replaces.
func (m *model) checkGap(rt *rapid.T, w *modelWatcher) {
	changes, events := m.changes[w.options.Tenant], m.events[w.options.Tenant]
	switch {
	case w.gapExpected:
		w.gapExpected = false
	case changes.isDropped(w.changes) && w.position >= w.changes[0].position:
		// More may have been committed since a paused client's GAP.
		w.changes = slices.DeleteFunc(w.changes, func(h modelEntry) bool { return h.position <= w.position })
	case events.isDropped(w.events):
		w.events = nil
	default:
		rt.Fatalf("GAP at %d after %d changes and %d events, but %v and %v are retained", w.position, m.end(w),
			len(events.all), w.changes, w.events)
	}
}
