package storetest

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// fork creates a conversation from the oldest messages of another.
func (m *machine) fork(r *rapid.T) {
	w := &store.Create{
		Conversation: &parleyv1.Conversation{
			Id: drawID(r), Retention: &parleyv1.Retention{MaxMessages: int32(rapid.IntRange(0, 4).Draw(r, "max_messages"))},
		},
		Request: drawRequest(r), OrGet: rapid.Bool().Draw(r, "or get"),
	}
	of := drawID(r)
	if c := m.oracle.conversations[of]; c != nil {
		begin := c.messages[:rapid.IntRange(0, len(c.messages)).Draw(r, "messages")]
		w.Messages = frames(m.t, begin...)
		w.Conversation.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: of, Sequence: int32(len(begin))}
	}
	m.writeBoth(w)
}

// readRequest reads whether a conversation has stored a request.
func (m *machine) readRequest(r *rapid.T) {
	q := &store.Read{Tenant: tenant, ConversationID: drawID(r), Request: drawRequest(r)}
	if q.Request == nil {
		return
	}
	m.nextInstant()
	got, err := m.store.Read(m.t.Context(), q)
	c := m.oracle.conversations[q.ConversationID]
	if c == nil {
		if !errorIs(err, store.ErrNotFound) {
			m.t.Fatalf("Read(%s) of a missing conversation = %v, want ErrNotFound", q.ConversationID, err)
		}
		return
	}
	first, wantErr := c.findRequest(q.Request)
	if wantErr != nil {
		if !errorIs(err, wantErr) {
			m.t.Fatalf("Read(%s) with request %+v = %v, want %v", q.ConversationID, q.Request, err, wantErr)
		}
		return
	}
	if err != nil {
		m.t.Fatalf("Read(%s) with request %+v: %v", q.ConversationID, q.Request, err)
	}
	var want *store.Seen
	if first != nil {
		want = &store.Seen{Created: first.result.Created, TurnID: first.turn}
	}
	same(m.t, "Seen", got.Seen, want)
}

// walk is a list that is read page by page while conversations change.
type walk struct {
	list    store.List
	initial map[string]member // conversations when the walk started, by uid
	seen    map[string]bool   // listed conversations, by uid
}

// member is a conversation that a list must contain.
type member struct {
	id      string
	version int32
}

func newWalk(l store.List, initial map[string]member) *walk {
	return &walk{list: l, initial: initial, seen: make(map[string]bool)}
}

// checkPage checks the next page. more reports whether there are further pages. now contains the
// present conversations by uid.
func (w *walk) checkPage(t tester, page *store.Page, now map[string]member) (more bool) {
	t.Helper()
	stays := func(uid string) bool {
		c, there := now[uid]
		return there && (c.version == w.initial[uid].version || w.list.Order != byUpdateTime)
	}
	for _, e := range page.Entries {
		uid := e.GetConversation().GetUid()
		if w.seen[uid] && stays(uid) {
			t.Fatalf("%s occurs twice in List(%+v)", e.GetConversation().GetId(), w.list)
		}
		w.seen[uid] = true
	}
	if w.list.PageToken = page.NextPageToken; w.list.PageToken != "" {
		return true
	}
	for uid, c := range w.initial {
		if stays(uid) && !w.seen[uid] {
			t.Fatalf("%s is missing in List(%+v)", c.id, w.list)
		}
	}
	return false
}

// page reads the next page of the current list or the first page of a new list.
func (m *machine) page(r *rapid.T) {
	m.nextInstant()
	if m.walk == nil {
		m.walk = newWalk(store.List{PageSize: rapid.IntRange(1, 2).Draw(r, "page size")}, m.members())
		switch rapid.IntRange(0, 2).Draw(r, "order") {
		case 1:
			m.walk.list.OldestFirst = true
		case 2:
			m.walk.list.Order = byUpdateTime
		}
	}
	if !m.walk.checkPage(m.t, m.list(m.walk.list), m.members()) {
		m.walk = nil
	}
}

// members returns all conversations, by uid.
func (m *machine) members() map[string]member {
	members := make(map[string]member)
	for id, c := range m.oracle.conversations {
		members[c.header.GetUid()] = member{id, c.header.GetVersion()}
	}
	return members
}

func (m *machine) saveProgress(r *rapid.T) {
	m.nextInstant()
	m.counter++
	p := &store.Progress{
		Tenant: tenant, ConversationID: drawID(r), TurnID: "turn", Messages: []*parleyv1.Message{
			assistant("so far"), assistant("and more"),
		},
		Events: turnEvents(int32(m.counter)),
	}
	if rapid.Bool().Draw(r, "without events") {
		p.Events = nil
	}
	want := store.ErrTurnEnded
	c := m.oracle.conversations[p.ConversationID]
	if c != nil && c.header.GetActiveTurnId() != "" && rapid.IntRange(0, 3).Draw(r, "running") > 0 {
		p.TurnID, want = c.header.GetActiveTurnId(), nil
		c.saved = &store.Progress{TurnID: p.TurnID, Messages: p.Messages, Events: proto.CloneOf(p.Events)}
	}
	if err := m.store.SaveProgress(m.t.Context(), p); want == nil && err != nil || want != nil && !errorIs(err, want) {
		m.t.Fatalf("SaveProgress = %v, want %v", err, want)
	}
}

// compareAbandoned compares the abandoned turns: those that were running when the store was opened
// and are still running.
func (m *machine) compareAbandoned() {
	var want []store.Progress
	for _, id := range slices.Sorted(maps.Keys(m.oracle.conversations)) {
		c := m.oracle.conversations[id]
		turn := c.header.GetActiveTurnId()
		if turn == "" || m.ran[id] != turn {
			continue
		}
		p := store.Progress{ConversationID: id, TurnID: turn}
		if c.saved != nil && c.saved.TurnID == turn {
			p.Messages, p.Events = c.saved.Messages, c.saved.Events
		}
		for _, e := range c.events {
			if p.Events == nil && e.GetTurnId() == turn {
				p.Events = e
			}
		}
		want = append(want, p)
	}
	m.abandoned(want)
}

// reopenBoth ends the process, from the point of view of the store, and starts the next one with
// another capacity.
func (m *machine) reopenBoth(r *rapid.T) {
	now := m.nextInstant()
	capacity := m.subject.modelCapacity(rapid.IntRange(1, 4).Draw(r, "capacity"))
	m.reopen(func(o *store.Options) { o.MaxConversations = capacity })
	m.oracle.restart(now)
	m.oracle.options.MaxConversations, m.unswept = capacity, true
	m.ran = make(map[string]string)
	for id, c := range m.oracle.conversations {
		m.ran[id] = c.header.GetActiveTurnId()
	}
}

// sweepBoth sweeps expired conversations and those that exceed a lowered capacity.
func (m *machine) sweepBoth(*rapid.T) {
	m.nextInstant()
	m.oracle.evictExcess()
	m.sweep()
	m.unswept = m.oracle.excess(0) > 0 // The remaining conversations have running turns.
}
