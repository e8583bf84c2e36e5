package storetest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// turns is the test of Append's Begin and End.
func (s Subject) turns(t *testing.T) {
	t.Run("begin and end", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("before"), assistant("hi"))
		f.clock.Advance(time.Second)
		accepted, forged := timestamppb.New(f.clock.Now().Add(-time.Minute)), timestamppb.New(time.Unix(1, 0))
		begun := f.do(&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question"), user("more")},
			Begin: &parleyv1.Turn{
				Id: "turn", RequestId: "r", Agent: "writer", ConversationId: "x", State: parleyv1.TurnState_TURN_STATE_FAILED,
				InputSequence: 77, FirstAnswerSequence: 77, LastAnswerSequence: 77, CreateTime: accepted, FinishTime: forged,
				Error: &parleyv1.TurnError{Reason: "FORGED"},
			},
		})
		want := &parleyv1.Turn{
			Id: "turn", ConversationId: "a", RequestId: "r", Agent: "writer", State: parleyv1.TurnState_TURN_STATE_RUNNING,
			InputSequence: 4, CreateTime: accepted,
		}
		same(t, "begun", begun.Turn, want)
		same(t, "kept", f.read("a").Turns, []*parleyv1.Turn{want})
		if got := f.header("a").GetActiveTurnId(); got != "turn" || begun.Conversation.GetActiveTurnId() != "turn" {
			t.Errorf("active turn %q", got)
		}

		f.append("a", user("meanwhile")) // Allowed while the turn runs.
		f.do(&store.Update{ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"}})
		f.clock.Advance(time.Second)
		ended := f.do(&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{assistant("answer"), assistant("and more")},
			End: &parleyv1.Turn{
				Id: "turn", Agent: "x", State: parleyv1.TurnState_TURN_STATE_FAILED, Error: &parleyv1.TurnError{Reason: "AGENT_FAILED"},
				InputSequence: 77, CreateTime: forged, FinishTime: forged,
			},
		})
		want.State, want.Error = parleyv1.TurnState_TURN_STATE_FAILED, &parleyv1.TurnError{Reason: "AGENT_FAILED"}
		want.FirstAnswerSequence, want.LastAnswerSequence, want.FinishTime = 6, 7, timestamppb.New(f.clock.Now())
		same(t, "ended", ended.Turn, want)
		same(t, "kept", f.read("a").Turns, []*parleyv1.Turn{want})
		if got := f.header("a").GetActiveTurnId(); got != "" {
			t.Errorf("active turn %q after its end", got)
		}
		f.refuse(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{assistant("again")}, End: &parleyv1.Turn{Id: "turn"}}, store.ErrTurnEnded)
	})
	t.Run("without messages", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("question"))
		before := f.header("a")
		f.clock.Advance(time.Minute)
		begun := f.do(&store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "turn", InputSequence: 1}})
		if begun.Turn.GetInputSequence() != 1 || len(begun.Appended) != 0 {
			t.Errorf("begun: %v", begun)
		}
		same(t, "create_time that nobody set", begun.Turn.GetCreateTime(), timestamppb.New(f.clock.Now()))
		c := f.header("a")
		same(t, "expire_time", c.GetExpireTime(), before.GetExpireTime()) // Nothing was appended.
		if c.GetVersion() != before.GetVersion()+1 || !c.GetUpdateTime().AsTime().Equal(f.clock.Now()) {
			t.Errorf("version %d, updated at %v", c.GetVersion(), c.GetUpdateTime().AsTime())
		}
		f.clock.Advance(time.Minute)
		ended := f.do(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_CANCELLED}})
		if turn := ended.Turn; turn.GetFirstAnswerSequence() != 0 || turn.GetLastAnswerSequence() != 0 {
			t.Errorf("ended: %v", turn)
		}
		if got := f.header("a").GetExpireTime().AsTime(); !got.Equal(f.clock.Now().Add(time.Hour)) {
			t.Errorf("expires at %v, want an hour after the turn's end", got)
		}
	})
	t.Run("makes the conversation", func(t *testing.T) {
		f := s.open(t, nil)
		begun := f.begin("a", "turn")
		if !begun.Created || begun.Turn.GetInputSequence() != 1 || begun.Conversation.GetVersion() != 1 {
			t.Errorf("begun: %v", begun)
		}
	})
	t.Run("the newest 32 are kept, oldest first", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range 35 {
			f.begin("a", fmt.Sprint("turn ", i))
			f.end("a", fmt.Sprint("turn ", i))
		}
		turns := f.read("a").Turns
		if len(turns) != 32 {
			t.Fatalf("%d turns are kept", len(turns))
		}
		for i, turn := range turns {
			if want := fmt.Sprint("turn ", i+3); turn.GetId() != want || turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
				t.Errorf("turn %d is %v, want %s", i, turn, want)
			}
		}
	})
	t.Run("deleted while it runs", func(t *testing.T) {
		f := s.open(t, nil)
		f.begin("a", "turn")
		f.do(&store.Delete{ConversationID: "a"})
		ending := &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{assistant("late")}, End: &parleyv1.Turn{Id: "turn"}}
		f.refuse(ending, store.ErrNotFound)
		f.create("a")
		f.refuse(ending, store.ErrTurnEnded)
	})
}

// requests is the test of what is remembered of requests.
func (s Subject) requests(t *testing.T) {
	t.Run("a retry gives the first result", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 3 })
		f.append("a", user("before"))
		asking := &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question"), assistant("draft")},
			Begin: &parleyv1.Turn{Id: "turn", RequestId: "r"}, Request: request("r", "question"), IfVersion: new(int32(1)),
		}
		first := f.do(asking)
		f.clock.Advance(time.Minute)
		again := func(what string, change func(want *store.Result)) {
			t.Helper()
			before := f.all()
			f.seen.take()
			asking.Begin.Id = "another turn" // A retry does not know the first one's.
			want := *first
			want.Conversation, want.Replayed = f.header("a"), true
			change(&want)
			same(t, what, f.do(asking), &want)
			same(t, what+": conversations", f.all(), before)
			if changes := f.seen.take(); len(changes) > 0 {
				t.Errorf("%s: told of %v", what, brief(changes))
			}
		}
		again("while the turn runs", func(*store.Result) {})
		turn := f.end("a", "turn").Turn
		again("when it has ended", func(want *store.Result) { want.Turn = turn })
		f.append("a", user("three"), user("that"), user("follow"))
		again("when its messages are gone", func(want *store.Result) { want.Turn = turn })
		for i := range 32 {
			f.begin("a", fmt.Sprint("turn ", i))
			f.end("a", fmt.Sprint("turn ", i))
		}
		again("when its turn is gone", func(want *store.Result) { want.Turn = nil })
	})
	t.Run("of Create", func(t *testing.T) {
		f := s.open(t, nil)
		creating := &store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, Request: &store.Request{ID: "r", Method: "CreateConversation"}}
		f.do(creating)
		f.append("a", user("hello"))
		same(t, "a retry", f.do(creating), &store.Result{Conversation: f.header("a"), Created: true, Replayed: true})
		reused := *creating
		reused.Request = &store.Request{ID: "r", Method: "CreateConversation", Digest: [32]byte{1}}
		f.refuse(&reused, store.ErrRequestReused)
		reused.OrGet = true
		f.refuse(&reused, store.ErrRequestReused)
		reused.Request = &store.Request{ID: "r", Method: "LoadConversation", Digest: [32]byte{1}}
		if got := f.do(&reused); got.Replayed {
			t.Error("the same id of another method is another request")
		}
	})
	t.Run("the method is part of the name", func(t *testing.T) {
		f := s.open(t, nil)
		for i, method := range []string{"AppendMessages", "Chat"} {
			r := request("r", "content "+method)
			r.Method = method
			result := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
			if result.Replayed || result.Appended[0].GetSequence() != int32(i)+1 {
				t.Errorf("%s: %v", method, result)
			}
		}
	})
	t.Run("only with its effect", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		failing := &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: request("r", "hello"), IfVersion: new(int32(9))}
		f.refuse(failing, &store.VersionError{Current: 1})
		failing.IfVersion = nil
		if f.do(failing).Replayed {
			t.Error("a request that failed is remembered")
		}
	})
	t.Run("the newest 32", func(t *testing.T) {
		f := s.open(t, nil)
		ask := func(i int) *store.Result {
			name := fmt.Sprint("r", i)
			return f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user(name)}, Request: request(name, name)})
		}
		for i := range 40 {
			ask(i)
		}
		for i := 8; i < 40; i++ {
			if result := ask(i); !result.Replayed || result.Appended[0].GetSequence() != int32(i)+1 {
				t.Errorf("request %d gave %v", i, result)
			}
		}
		if ask(7).Replayed {
			t.Error("the 33rd newest is remembered")
		}
	})
}
