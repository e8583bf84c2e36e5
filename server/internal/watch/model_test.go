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

// happening is a change, or an event of a turn. Both have positions of their own, from 1.
type modelEntry struct {
	tenant, id string
	position   int
	after      int // of an event: the position of the newest change
}

// model does to a hub what it takes note of.
type model struct {
	*watch.Hub

	t       *testing.T
	limit   int // of changes that are kept, and of events
	changes []modelEntry
	events  []modelEntry
	all     []*modelWatcher
	cursors []string // that any watcher was given
}

// modelWatcher is a client, and what it still has to see.
type modelWatcher struct {
	*client

	options     watch.Watch
	paused      bool
	started     bool         // It has had its first heartbeat.
	gapExpected bool         // A GAP must come first of all.
	changes     []modelEntry // to come
	events      []modelEntry
	cursor      string // the last that it was given
	position    int    // of it
}

func (w *modelWatcher) wants(h modelEntry) bool {
	return h.tenant == w.options.Tenant && (len(w.options.ConversationIDs) == 0 || slices.Contains(w.options.ConversationIDs, h.id))
}

// TestModel compares random steps with what a naive model says of them: a watcher sees each
// change and each event that it wants exactly once, in the order in which they happened, or a
// GAP in their place, and no GAP unless what it had to see next is no longer kept.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			limit := rapid.IntRange(1, 6).Draw(rt, "limit")
			m := &model{Hub: watch.NewSmall(watch.Options{}, limit, 1<<30), t: t, limit: limit}
			rt.Repeat(map[string]func(*rapid.T){
				"":       m.check,
				"commit": m.commitBatch,
				"event":  m.event,
				"watch":  m.startWatching,
				"resume": m.resume,
				"stall":  m.pauseReading,
				"go on":  m.resumeReading,
				"leave":  m.disconnect,
				"wait":   m.waitForHeartbeats,
			})
			for _, w := range m.all {
				m.end(rt, w)
			}
			if keys, readers := m.Readers(); keys != 0 || readers != 0 || m.Watchers() != 0 {
				rt.Fatalf("%d keys, %d readers, %d watchers are left", keys, readers, m.Watchers())
			}
		})
	})
}

// bubble runs one case of a property in a bubble of synctest.
func bubble(t *testing.T, rt *rapid.T, run func(t *testing.T)) {
	t.Helper()
	var failed any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failed = recover() }() // It is for rapid, which waits outside.
		run(t)
	})
	if fmt.Sprintf("%T", failed) == "rapid.invalidData" {
		rt.SkipNow() // Not from the same line: rapid tells failures apart by it.
	}
	if failed != nil {
		panic(failed)
	}
}

func anyTenant(rt *rapid.T) string { return rapid.SampledFrom([]string{"t", "u"}).Draw(rt, "tenant") }

func anyID(rt *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "id") }

// commit commits a batch that is not larger than what is kept.
func (m *model) commitBatch(rt *rapid.T) {
	batch := make([]store.Change, rapid.IntRange(1, m.limit).Draw(rt, "n"))
	for i := range batch {
		h := modelEntry{tenant: anyTenant(rt), id: anyID(rt), position: len(m.changes) + 1}
		batch[i] = appendedChange(h.tenant, h.id, int32(h.position), "")
		m.changes = append(m.changes, h)
		for _, w := range m.all {
			if w.wants(h) {
				w.changes = append(w.changes, h)
			}
		}
	}
	m.Committed(batch)
}

// event has something happen in a turn.
func (m *model) event(rt *rapid.T) {
	if !m.HasSubscribers() {
		rt.Skip("as turns do")
	}
	h := modelEntry{tenant: anyTenant(rt), id: anyID(rt), position: len(m.events) + 1, after: len(m.changes)}
	m.events = append(m.events, h)
	for _, w := range m.all {
		if w.options.TurnEvents && w.wants(h) {
			w.events = append(w.events, h)
		}
	}
	m.TurnEvent(h.tenant, h.id, textEvent(int32(h.position)))
}

// watch watches from now on.
func (m *model) startWatching(rt *rapid.T) {
	m.addWatcher(watch.Watch{
		Tenant: anyTenant(rt), TurnEvents: rapid.Bool().Draw(rt, "turn events"),
		ConversationIDs: rapid.SampledFrom([][]string{nil, nil, {"a"}, {"b", "c"}, {"a", "a"}, {"nobody"}}).Draw(rt, "ids"),
	})
}

// resume goes on from a cursor that somebody was given, perhaps one who watched otherwise.
func (m *model) resume(rt *rapid.T) {
	if len(m.cursors) == 0 {
		rt.Skip("nobody has a cursor")
	}
	o := watch.Watch{
		Tenant: anyTenant(rt), TurnEvents: rapid.Bool().Draw(rt, "turn events"), Cursor: rapid.SampledFrom(m.cursors).Draw(rt, "cursor"),
		ConversationIDs: rapid.SampledFrom([][]string{nil, {"a"}, {"b", "c"}}).Draw(rt, "ids"),
	}
	m.addWatcher(o)
}

func (m *model) addWatcher(o watch.Watch) {
	w := &modelWatcher{options: o, client: startClient(m.t, m.Hub, o, nil), position: len(m.changes)}
	m.all = append(m.all, w)
	if o.Cursor == "" {
		return
	}
	at := position(m.t, o.Cursor)
	if w.gapExpected = at < len(m.changes)-m.limit; w.gapExpected {
		return
	}
	w.position = at
	for _, h := range m.changes[at:] {
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
		rt.Skip("there is none")
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

// leave has a client leave, which then or later resumes from the cursor that it had.
func (m *model) disconnect(rt *rapid.T) {
	w := m.pickWatcher(rt, rapid.Bool().Draw(rt, "stalled"))
	m.end(rt, w)
	m.all = slices.DeleteFunc(m.all, func(other *modelWatcher) bool { return other == w })
	if cursor := w.cursor; cursor != "" && rapid.Bool().Draw(rt, "comes back") {
		w.options.Cursor = cursor
		m.addWatcher(w.options)
	}
}

func (m *model) end(rt *rapid.T, w *modelWatcher) {
	_ = w.disconnect()
	m.checkReceived(rt, w)
}

// wait lets it be silent for so long that there are heartbeats.
func (m *model) waitForHeartbeats(rt *rapid.T) {
	<-time.After(heartbeatInterval)
	m.check(rt)
	for i, w := range m.all {
		if !w.paused && w.position != len(m.changes) {
			rt.Fatalf("watcher %d stands at %d, after %d changes", i, w.position, len(m.changes))
		}
	}
}

// check waits for all goroutines to come to rest, and looks at what every client has got.
func (m *model) check(rt *rapid.T) {
	for i, w := range m.all {
		m.checkReceived(rt, w)
		if !w.paused && (!w.started || w.gapExpected || len(w.changes)+len(w.events) > 0) {
			rt.Fatalf("watcher %d has still to see %v and %v", i, w.changes, w.events)
		}
	}
}

// see checks what a client has got.
func (m *model) checkReceived(rt *rapid.T, w *modelWatcher) {
	for _, c := range w.received() {
		at := position(m.t, c.GetCursor())
		if at < w.position && w.cursor != "" {
			rt.Fatalf("%v goes back from %d to %d", c, w.position, at)
		}
		if !w.started && at != w.position {
			rt.Fatalf("%v goes on from %d, not from %d", c, at, w.position)
		}
		if !w.started && (c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP) != w.gapExpected {
			rt.Fatalf("%v comes first from cursor %s, which is lost: %t", c, w.options.Cursor, w.gapExpected)
		}
		w.cursor, w.position = c.GetCursor(), at
		m.cursors = append(m.cursors, c.GetCursor())
		switch c.GetKind() {
		case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
			w.started = true
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			m.checkGap(rt, w)
		case parleyv1.ChangeKind_CHANGE_KIND_TURN:
			if after := m.events[c.GetTurnEvent().GetIndex()-1].after; len(w.changes) > 0 && w.changes[0].position <= after {
				rt.Fatalf("%v comes ahead of %v, which happened before", c, w.changes[0])
			}
			w.events = next(rt, w.events, c, int(c.GetTurnEvent().GetIndex()))
		default:
			if e := w.events; len(e) > 0 && !m.isDropped(e, m.events) && e[0].after < int(c.GetVersion()) {
				rt.Fatalf("%v comes ahead of %v, which happened before", c, e[0])
			}
			w.changes = next(rt, w.changes, c, int(c.GetVersion()))
		}
		// Who goes on from here misses nothing.
		if len(w.changes) > 0 && w.changes[0].position <= at {
			rt.Fatalf("%v has cursor %d, and %v is still to come", c, at, w.changes[0])
		}
	}
}

// next checks that what comes is what had to come next.
func next(rt *rapid.T, to []modelEntry, c *parleyv1.ConversationChange, position int) (rest []modelEntry) {
	if len(to) == 0 || to[0].id != c.GetConversationId() || to[0].position != position {
		rt.Fatalf("%v comes instead of %v", c, to)
	}
	return to[1:]
}

// isGone reports whether what had to come next is no longer kept.
func (m *model) isDropped(to, of []modelEntry) bool {
	return len(to) > 0 && to[0].position <= len(of)-m.limit
}

// seeGap checks that something had to be missing, and notes that it is.
func (m *model) checkGap(rt *rapid.T, w *modelWatcher) {
	switch {
	case w.gapExpected:
		w.gapExpected = false
	case m.isDropped(w.changes, m.changes) && w.position == len(m.changes):
		w.changes = nil
	case m.isDropped(w.events, m.events):
		w.events = nil
	default:
		rt.Fatalf("a GAP at %d after %d changes and %d events, though %v and %v are kept", w.position, len(m.changes), len(m.events), w.changes, w.events)
	}
}
