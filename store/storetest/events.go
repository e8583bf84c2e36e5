package storetest

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// events is the test of Append.Events and Snapshot.Events.
func (s Subject) events(t *testing.T) {
	t.Run("replaced as the turn goes on", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("before"))
		given := turnEvents(1)
		f.beginWith("a", "turn", given)
		same(t, "the caller's message", given, turnEvents(1))
		f.keeps(keptEvents(1, "turn", 2))

		f.append("a", user("meanwhile"))
		f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("of no turn")}, Events: turnEvents(9)})
		f.do(&store.Update{ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"}})
		f.keeps(keptEvents(1, "turn", 2))

		f.endWith("a", "turn", turnEvents(2))
		f.keeps(keptEvents(2, "turn", 6))
		f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32)})
		f.keeps(keptEvents(2, "turn", 6))
	})
	t.Run("nil keeps those that there are", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginWith("a", "turn", turnEvents(1))
		f.end("a", "turn")
		f.keeps(keptEvents(1, "turn", 1))
		f.begin("a", "without")
		f.keeps(keptEvents(1, "turn", 1))
		f.end("a", "without")
		f.begin("a", "another")
		f.endWith("a", "another", turnEvents(2))
		f.keeps(keptEvents(1, "turn", 1), keptEvents(2, "another", 6))
	})
	t.Run("empty ones are kept too", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginWith("a", "turn", &storev1.TurnEvents{})
		f.keeps(&storev1.TurnEvents{TurnId: "turn", ConversationVersion: 1})
	})
	t.Run("only with Read.Turns", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginWith("a", "turn", turnEvents(1))
		snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: -1})
		if err != nil || snapshot.Turns != nil || snapshot.Events != nil {
			t.Errorf("turns %v, events %v, %v", snapshot.Turns, snapshot.Events, err)
		}
	})
	t.Run("oldest first, as long as their turns", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range int32(40) {
			turn, begun, ended := fmt.Sprint("turn ", i), turnEvents(i), turnEvents(100+i)
			if i%3 == 1 {
				begun = nil
			}
			if i%4 > 0 {
				ended = nil
			}
			f.beginWith("a", turn, begun)
			f.endWith("a", turn, ended)
		}
		var want []*storev1.TurnEvents
		for i := range int32(40) {
			turn := fmt.Sprint("turn ", i)
			switch {
			case i < 8: // Fell out.
			case i%4 == 0:
				want = append(want, keptEvents(100+i, turn, 2*i+2))
			case i%3 != 1:
				want = append(want, keptEvents(i, turn, 2*i+1))
			}
		}
		f.keeps(want...)
		for i := range 32 {
			f.begin("a", fmt.Sprint("later ", i))
			f.end("a", fmt.Sprint("later ", i))
		}
		f.keeps()
	})
	t.Run("not of a write that does nothing", func(t *testing.T) {
		f := s.open(t, nil)
		asking := &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question")},
			Begin: &parleyv1.Turn{Id: "turn"}, Request: request("r", "question"), Events: turnEvents(1),
		}
		f.do(asking)
		asking.Events = turnEvents(2)
		f.do(asking)
		f.refuse(&store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "another"}, Events: turnEvents(3)}, &store.BusyError{TurnID: "turn"})
		f.refuse(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "another"}, Events: turnEvents(3)}, store.ErrTurnEnded)
		f.keeps(keptEvents(1, "turn", 1))
	})
	t.Run("gone with the conversation", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginWith("a", "turn", turnEvents(1))
		f.do(&store.Delete{ConversationID: "a"})
		f.begin("a", "turn")
		f.keeps()
	})
}

// beginWith opens a turn with a question and events.
func (f *fixture) beginWith(id, turn string, events *storev1.TurnEvents) {
	f.t.Helper()
	f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{user("question")}, Begin: &parleyv1.Turn{Id: turn}, Events: events,
	})
}

// endWith closes a turn with an answer and events.
func (f *fixture) endWith(id, turn string, events *storev1.TurnEvents) {
	f.t.Helper()
	given := proto.CloneOf(events)
	f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{assistant("answer")}, Events: events,
		End: &parleyv1.Turn{Id: turn, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	})
	same(f.t, "the caller's message", events, given)
}

// keeps checks the events of the turns of conversation "a".
func (f *fixture) keeps(want ...*storev1.TurnEvents) {
	f.t.Helper()
	same(f.t, "events", f.read("a").Events, want)
}
