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

// runTurns runs up to three turns of a conversation with max_turns, unless a turn runs.
func (m *machine) runTurns(r *rapid.T, id string) {
	c := m.oracle.conversations[id]
	if c == nil || c.header.GetActiveTurnId() != "" || c.header.GetRetention().GetMaxTurns() == 0 {
		return
	}
	for range rapid.IntRange(0, 3).Draw(r, "turns") {
		turn := &parleyv1.Turn{Id: m.nextTurn(), State: parleyv1.TurnState_TURN_STATE_COMPLETED}
		m.writeBoth(&store.Append{ConversationID: id, Begin: turn})
		m.writeBoth(&store.Append{ConversationID: id, End: turn})
	}
}

// dropTurns drops the oldest turns. In the model, max_turns is at most store.DefaultMaxTurns.
func (c *oracleConversation) dropTurns() {
	limit := int(c.header.GetRetention().GetMaxTurns())
	if limit == 0 {
		limit = store.DefaultMaxTurns
	}
	c.turns = slices.Clone(c.turns[max(0, len(c.turns)-limit):])
	c.keepEvents(nil, "")
}

// checkTurns compares the lists of turns, and looks up the newest 40 turns that have begun.
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
		m.compareTurns(store.ListTurns{ConversationID: id, Limit: 2}, own)
	}
	slices.Sort(all)
	slices.Sort(running)
	m.compareTurns(store.ListTurns{Limit: 2}, all)
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
