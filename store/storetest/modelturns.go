package storetest

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// nextTurn returns the id of a new turn. Half of the ids are found without their conversation.
func (m *machine) nextTurn() string {
	m.counter++
	id := fmt.Sprint("turn ", m.counter)
	if m.counter%2 == 0 {
		id = turnID(m.counter)
	}
	m.begun = append(m.begun, id)
	return id
}

// runTurns runs a few turns of a conversation, or so many that a store divides them. In the second case, it makes the
// conversation keep many turns.
func (m *machine) runTurns(r *rapid.T) {
	id := drawID(r)
	m.writeBoth(&store.Create{Conversation: drawNew(r, id), OrGet: true})
	c := m.oracle.conversations[id]
	if c == nil {
		return // The tenant is full.
	}
	if running := c.header.GetActiveTurnId(); running != "" {
		m.writeBoth(&store.Append{ConversationID: id, End: &parleyv1.Turn{Id: running}})
	}
	n := rapid.SampledFrom([]int{1, 2, 50, 80}).Draw(r, "turns")
	if n > 3 && c.header.GetRetention().GetMaxTurns() <= store.DefaultMaxTurns {
		m.writeBoth(&store.Update{
			ConversationID: id, Fields: []string{"retention.max_turns"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxTurns: drawMaxTurns(r, false)}},
		})
	}
	for range n {
		turn := &parleyv1.Turn{Id: m.nextTurn(), State: parleyv1.TurnState_TURN_STATE_COMPLETED}
		m.writeBoth(&store.Append{ConversationID: id, Begin: turn, Events: turnEvents(int32(m.counter))})
		m.writeBoth(&store.Append{ConversationID: id, End: turn})
	}
}

// drawMaxTurns draws a max_turns with which a conversation keeps few turns, or so many that a store divides them.
func drawMaxTurns(r *rapid.T, few bool) int32 {
	if few {
		return int32(rapid.IntRange(0, 3).Draw(r, "max_turns"))
	}
	return rapid.SampledFrom([]int32{33, 48, 60}).Draw(r, "many max_turns")
}

// dropTurns drops the oldest turns that the store cannot keep. Those that it may keep are left until align is called.
func (c *oracleConversation) dropTurns() {
	least, most := keptTurns(c.header.GetRetention().GetMaxTurns())
	c.leastTurns = min(c.leastTurns, least)
	c.dropAllBut(most)
}

// dropAllBut drops all turns but the newest n.
func (c *oracleConversation) dropAllBut(n int) {
	c.turns = slices.Clone(c.turns[max(0, len(c.turns)-n):])
	c.keepEvents(nil, "")
}

// isNewest reports whether a turn is one of the newest, which each read returns.
func (c *oracleConversation) isNewest(turn *parleyv1.Turn) bool {
	return slices.ContainsFunc(c.turns[max(0, len(c.turns)-store.DefaultMaxTurns):], func(t *parleyv1.Turn) bool {
		return t.GetId() == turn.GetId()
	})
}

// alignTurns checks that the store keeps as many turns of a conversation as it must, and drops those from the oracle
// that it has dropped.
func (m *machine) alignTurns(id string, c *oracleConversation) {
	n := len(m.turnList(store.ListTurns{ConversationID: id, Limit: 100}, func() {}))
	if n < c.leastTurns || n > len(c.turns) {
		m.t.Fatalf("%s keeps %d turns, want %d to %d", id, n, c.leastTurns, len(c.turns))
	}
	c.dropAllBut(n)
	least, _ := keptTurns(c.header.GetRetention().GetMaxTurns())
	c.leastTurns = min(n, least) // None of these is dropped before there are more than max_turns.
}

// compareNewest compares the turns of a snapshot, and their events, with the newest of a conversation.
func (m *machine) compareNewest(id string, got *store.Snapshot, c *oracleConversation) {
	n := len(got.Turns)
	if n < min(store.DefaultMaxTurns, len(c.turns)) || n > min(store.DefaultMaxTurns+63, len(c.turns)) {
		m.t.Fatalf("Read(%s) = %d turns of %d", id, n, len(c.turns))
	}
	newest := &oracleConversation{turns: c.turns, events: slices.Clone(c.events)}
	newest.dropAllBut(n)
	same(m.t, "turns of "+id, got.Turns, newest.turns)
	same(m.t, "events of "+id, got.Events, newest.events)
}

// checkTurns compares the lists of turns, and finds each turn that has ever begun.
func (m *machine) checkTurns() {
	kept := map[string]*parleyv1.Turn{}
	var all, running []string
	for id, c := range m.oracle.conversations {
		var own []string
		for _, turn := range c.turns {
			kept[turn.GetId()], own = turn, append(own, turn.GetId())
			if !strings.HasPrefix(turn.GetId(), "turn") {
				all = append(all, turn.GetId())
				if turn.GetState() == parleyv1.TurnState_TURN_STATE_RUNNING {
					running = append(running, turn.GetId())
				}
			}
		}
		m.compareTurns(store.ListTurns{ConversationID: id, Limit: 2 + len(own)/8}, own)
	}
	slices.Sort(all)
	slices.Sort(running)
	m.compareTurns(store.ListTurns{Limit: 2 + len(all)/8}, all)
	m.compareTurns(store.ListTurns{Limit: 2, States: []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_RUNNING}}, running)
	for _, id := range m.begun[max(0, len(m.begun)-40):] {
		turn := kept[id]
		if turn == nil || strings.HasPrefix(id, "turn") {
			m.wantNoTurn("", id, store.ErrTurnNotFound)
		} else {
			same(m.t, "turn", m.findTurn("", id).Turn, turn)
		}
		if turn != nil {
			same(m.t, "turn with its conversation", m.findTurn(turn.GetConversationId(), id).Turn, turn)
		}
	}
}

// compareTurns compares a list with turns, oldest first.
func (m *machine) compareTurns(l store.ListTurns, want []string) {
	got := m.turnList(l, func() {})
	slices.Reverse(got)
	same(m.t, fmt.Sprintf("ListTurns(%+v)", l), got, want)
}
