package storetest

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhq/parley/store"
)

// oracleEphemeral is the oracle's state of an ephemeral id.
type oracleEphemeral struct {
	holders int
	after   time.Duration // DeleteAfter of the latest Hold
	ends    time.Time     // delete time, if there are no holders
}

// held reports whether the id has a holder.
func (o *oracle) held(id string) bool { return o.ephemeral[id] != nil && o.ephemeral[id].holders > 0 }

// expireEphemeral removes ephemeral ids whose delete time has passed, and their conversations.
func (o *oracle) expireEphemeral(now time.Time) {
	for id, m := range o.ephemeral {
		if m.holders > 0 || now.Before(m.ends) {
			continue
		}
		if m.ends.After(o.lastExpiry) {
			o.lastExpiry = m.ends
		}
		delete(o.ephemeral, id)
		if c := o.conversations[id]; c != nil {
			delete(o.conversations, id)
			o.ended[c.summary("DELETED", id, len(c.messages), 0)+ephemeralEnded]++
		}
	}
}

func (o *oracle) hold(h *store.Hold) {
	for _, id := range distinct(h) {
		if o.ephemeral[id] == nil {
			o.ephemeral[id] = new(oracleEphemeral)
		}
		o.ephemeral[id].holders++
		o.ephemeral[id].after = h.DeleteAfter
	}
}

// release removes a holder from each id and reports the conversations that are deleted.
func (o *oracle) release(h *store.Hold, now time.Time) {
	for _, id := range distinct(h) {
		if !o.held(id) {
			continue
		}
		m := o.ephemeral[id]
		m.holders--
		m.ends = now.Add(h.DeleteAfter)
		c := o.conversations[id]
		if m.holders > 0 || h.DeleteAfter > 0 && c != nil {
			continue
		}
		delete(o.ephemeral, id)
		if c != nil {
			delete(o.conversations, id)
			o.changes = append(o.changes, c.summary("DELETED", id, len(c.messages), 0)+ephemeralEnded)
		}
	}
}

// restart applies the effects of the end of a process and the start of the next one.
func (o *oracle) restart(now time.Time) {
	for id, m := range o.ephemeral {
		if m.holders > 0 {
			m.holders, m.ends = 0, now.Add(m.after)
		}
		if o.conversations[id] == nil {
			delete(o.ephemeral, id)
		}
	}
}

// remove removes a conversation that has been deleted, replaced or evicted.
func (o *oracle) remove(id string) {
	delete(o.conversations, id)
	if !o.held(id) {
		delete(o.ephemeral, id)
	}
}

func distinct(h *store.Hold) []string {
	ids := slices.Clone(h.ConversationIDs)
	slices.Sort(ids)
	return slices.Compact(ids)
}

func drawHold(r *rapid.T) *store.Hold {
	h := &store.Hold{
		Tenant: tenant,
		DeleteAfter: rapid.SampledFrom([]time.Duration{
			0, time.Second, 5 * time.Minute, 45 * time.Minute,
		}).Draw(r, "delete after"),
	}
	for range rapid.IntRange(1, 3).Draw(r, "ids") {
		h.ConversationIDs = append(h.ConversationIDs, drawID(r))
	}
	return h
}

func (m *machine) hold(r *rapid.T) {
	h := drawHold(r)
	m.nextInstant()
	m.oracle.hold(h)
	if err := m.store.Hold(m.t.Context(), h); err != nil {
		m.t.Fatalf("Hold: %v", err)
	}
}

func (m *machine) release(r *rapid.T) {
	h := drawHold(r)
	m.oracle.release(h, m.nextInstant())
	if err := m.store.Release(m.t.Context(), h); err != nil {
		m.t.Fatalf("Release: %v", err)
	}
}
