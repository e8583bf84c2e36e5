package storetest

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhq/parley/store"
)

// toldSession is session memory as the oracle has it.
type toldSession struct {
	holders int
	after   time.Duration // of the latest Hold
	ends    time.Time     // when nobody holds it
}

// held reports whether somebody holds the id.
func (o *oracle) held(id string) bool { return o.sessions[id] != nil && o.sessions[id].holders > 0 }

// expireSessions drops the session memory that is over by now, and its conversations.
func (o *oracle) expireSessions(now time.Time) {
	for id, m := range o.sessions {
		if m.holders > 0 || now.Before(m.ends) {
			continue
		}
		if m.ends.After(o.lastExpiry) {
			o.lastExpiry = m.ends
		}
		delete(o.sessions, id)
		if c := o.conversations[id]; c != nil {
			delete(o.conversations, id)
			o.ended[c.inBrief("DELETED", id, len(c.messages), 0)+sessionEnded]++
		}
	}
}

func (o *oracle) hold(h *store.Hold) {
	for _, id := range distinct(h) {
		if o.sessions[id] == nil {
			o.sessions[id] = new(toldSession)
		}
		o.sessions[id].holders++
		o.sessions[id].after = h.DeleteAfter
	}
}

// release tells of the conversations that go with it.
func (o *oracle) release(h *store.Hold, now time.Time) {
	for _, id := range distinct(h) {
		if !o.held(id) {
			continue
		}
		m := o.sessions[id]
		m.holders--
		m.ends = now.Add(h.DeleteAfter)
		c := o.conversations[id]
		if m.holders > 0 || h.DeleteAfter > 0 && c != nil {
			continue
		}
		delete(o.sessions, id)
		if c != nil {
			delete(o.conversations, id)
			o.changes = append(o.changes, c.inBrief("DELETED", id, len(c.messages), 0)+sessionEnded)
		}
	}
}

// restart is what the end of a process and the start of the next does.
func (o *oracle) restart(now time.Time) {
	for id, m := range o.sessions {
		if m.holders > 0 {
			m.holders, m.ends = 0, now.Add(m.after)
		}
		if o.conversations[id] == nil {
			delete(o.sessions, id)
		}
	}
}

// remove drops a conversation that has come to no end of its own.
func (o *oracle) remove(id string) {
	delete(o.conversations, id)
	if !o.held(id) {
		delete(o.sessions, id)
	}
}

func distinct(h *store.Hold) []string {
	ids := slices.Clone(h.ConversationIDs)
	slices.Sort(ids)
	return slices.Compact(ids)
}

func aHold(r *rapid.T) *store.Hold {
	h := &store.Hold{Tenant: tenant, DeleteAfter: rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Minute, 45 * time.Minute}).Draw(r, "delete after")}
	for range rapid.IntRange(1, 3).Draw(r, "ids") {
		h.ConversationIDs = append(h.ConversationIDs, anID(r))
	}
	return h
}

func (m *machine) hold(r *rapid.T) {
	h := aHold(r)
	m.tick()
	m.oracle.hold(h)
	if err := m.store.Hold(m.t.Context(), h); err != nil {
		m.t.Fatalf("Hold: %v", err)
	}
}

func (m *machine) release(r *rapid.T) {
	h := aHold(r)
	m.oracle.release(h, m.tick())
	if err := m.store.Release(m.t.Context(), h); err != nil {
		m.t.Fatalf("Release: %v", err)
	}
}
