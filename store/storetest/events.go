package storetest

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// events tests Append.Events and Snapshot.Events.
func (s Subject) events(t *testing.T) {
	t.Run("replaced during the turn", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("before"))
		given := turnEvents(1)
		f.beginTurnWith("a", "turn", given)
		same(t, "caller's argument", given, turnEvents(1))
		f.expectEvents(keptEvents(1, "turn", 2))

		f.append("a", user("during the turn"))
		f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("of no turn")}, Events: turnEvents(9)})
		f.do(&store.Update{ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"}})
		f.expectEvents(keptEvents(1, "turn", 2))

		f.endTurnWith("a", "turn", turnEvents(2))
		f.expectEvents(keptEvents(2, "turn", 6))
		f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32)})
		f.expectEvents(keptEvents(2, "turn", 6))
	})
	t.Run("nil keeps the stored events", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurnWith("a", "turn", turnEvents(1))
		f.endTurn("a", "turn")
		f.expectEvents(keptEvents(1, "turn", 1))
		f.beginTurn("a", "without")
		f.expectEvents(keptEvents(1, "turn", 1))
		f.endTurn("a", "without")
		f.beginTurn("a", "another")
		f.endTurnWith("a", "another", turnEvents(2))
		f.expectEvents(keptEvents(1, "turn", 1), keptEvents(2, "another", 6))
	})
	t.Run("empty events are stored", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurnWith("a", "turn", &storev1.TurnEvents{})
		f.expectEvents(&storev1.TurnEvents{TurnId: "turn", ConversationVersion: 1})
	})
	t.Run("only with Read.Turns", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurnWith("a", "turn", turnEvents(1))
		snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: -1})
		if err != nil || snapshot.Turns != nil || snapshot.Events != nil {
			t.Errorf("Read without Turns = turns %v, events %v, %v, want none", snapshot.Turns, snapshot.Events, err)
		}
	})
	t.Run("oldest first, kept as long as their turns", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range int32(40) {
			turn, started, ended := fmt.Sprint("turn ", i), turnEvents(i), turnEvents(100+i)
			if i%3 == 1 {
				started = nil
			}
			if i%4 > 0 {
				ended = nil
			}
			f.beginTurnWith("a", turn, started)
			f.endTurnWith("a", turn, ended)
		}
		var want []*storev1.TurnEvents
		for i := range int32(40) {
			turn := fmt.Sprint("turn ", i)
			switch {
			case i < 8: // The turn is no longer among the newest 32.
			case i%4 == 0:
				want = append(want, keptEvents(100+i, turn, 2*i+2))
			case i%3 != 1:
				want = append(want, keptEvents(i, turn, 2*i+1))
			}
		}
		f.expectEvents(want...)
		for i := range 32 {
			f.beginTurn("a", fmt.Sprint("later ", i))
			f.endTurn("a", fmt.Sprint("later ", i))
		}
		f.expectEvents()
	})
	t.Run("not stored by a write that changes nothing", func(t *testing.T) {
		f := s.open(t, nil)
		asking := &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question")},
			Begin: &parleyv1.Turn{Id: "turn"}, Request: request("r", "question"), Events: turnEvents(1),
		}
		f.do(asking)
		asking.Events = turnEvents(2)
		f.do(asking)
		f.expectError(&store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "another"}, Events: turnEvents(3)},
			&store.BusyError{TurnID: "turn"})
		f.expectError(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "another"}, Events: turnEvents(3)},
			store.ErrTurnEnded)
		f.expectEvents(keptEvents(1, "turn", 1))
	})
	t.Run("deleted with the conversation", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurnWith("a", "turn", turnEvents(1))
		f.do(&store.Delete{ConversationID: "a"})
		f.beginTurn("a", "turn")
		f.expectEvents()
	})
}

// beginTurnWith starts a turn with a question and events.
func (f *fixture) beginTurnWith(id, turn string, events *storev1.TurnEvents) {
	f.t.Helper()
	f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{user("question")}, Begin: &parleyv1.Turn{Id: turn}, Events: events,
	})
}

// endTurnWith ends a turn with an answer and events.
func (f *fixture) endTurnWith(id, turn string, events *storev1.TurnEvents) {
	f.t.Helper()
	given := proto.CloneOf(events)
	f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{assistant("answer")}, Events: events,
		End: &parleyv1.Turn{Id: turn, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	})
	same(f.t, "caller's argument", events, given)
}

// expectEvents checks the events of all turns of conversation "a".
func (f *fixture) expectEvents(want ...*storev1.TurnEvents) {
	f.t.Helper()
	same(f.t, "events", f.read("a").Events, want)
}
