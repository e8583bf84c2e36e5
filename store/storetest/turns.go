package storetest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// turns tests Append with Begin and End.
func (s Subject) turns(t *testing.T) {
	t.Run("begin and end", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("before"), assistant("hi"))
		f.clock.Advance(time.Second)
		accepted, forged := timestamppb.New(f.clock.Now().Add(-time.Minute)), timestamppb.New(time.Unix(1, 0))
		started := f.do(&store.Append{
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
		same(t, "started turn", started.Turn, want)
		same(t, "stored turns", f.read("a").Turns, []*parleyv1.Turn{want})
		if got := f.header("a").GetActiveTurnId(); got != "turn" || started.Conversation.GetActiveTurnId() != "turn" {
			t.Errorf("active_turn_id = %q, want turn", got)
		}

		f.append("a", user("during the turn")) // Appends are allowed while a turn runs.
		f.do(&store.Update{ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"}})
		f.clock.Advance(time.Second)
		ended := f.do(&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{assistant("answer"), assistant("and more")},
			End: &parleyv1.Turn{
				Id: "turn", Agent: "x", State: parleyv1.TurnState_TURN_STATE_FAILED,
				Error:         &parleyv1.TurnError{Reason: "AGENT_FAILED"},
				InputSequence: 77, CreateTime: forged, FinishTime: forged,
			},
		})
		want.State, want.Error = parleyv1.TurnState_TURN_STATE_FAILED, &parleyv1.TurnError{Reason: "AGENT_FAILED"}
		want.FirstAnswerSequence, want.LastAnswerSequence, want.FinishTime = 6, 7, timestamppb.New(f.clock.Now())
		same(t, "ended", ended.Turn, want)
		same(t, "stored turns", f.read("a").Turns, []*parleyv1.Turn{want})
		if got := f.header("a").GetActiveTurnId(); got != "" {
			t.Errorf("active_turn_id after the end = %q, want none", got)
		}
		again := []*parleyv1.Message{assistant("again")}
		end := &parleyv1.Turn{Id: "turn"}
		f.expectError(&store.Append{ConversationID: "a", Messages: again, End: end}, store.ErrTurnEnded)
	})
	t.Run("without messages", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("question"))
		before := f.header("a")
		f.clock.Advance(time.Minute)
		started := f.do(&store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "turn", InputSequence: 1}})
		if started.Turn.GetInputSequence() != 1 || len(started.Appended) != 0 {
			t.Errorf("Append with Begin = %v", started)
		}
		same(t, "default create_time", started.Turn.GetCreateTime(), timestamppb.New(f.clock.Now()))
		c := f.header("a")
		same(t, "expire_time", c.GetExpireTime(), before.GetExpireTime()) // Nothing was appended.
		if c.GetVersion() != before.GetVersion()+1 || !c.GetUpdateTime().AsTime().Equal(f.clock.Now()) {
			t.Errorf("version = %d, update_time = %v", c.GetVersion(), c.GetUpdateTime().AsTime())
		}
		f.clock.Advance(time.Minute)
		ended := f.do(&store.Append{
			ConversationID: "a", End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_CANCELLED},
		})
		if turn := ended.Turn; turn.GetFirstAnswerSequence() != 0 || turn.GetLastAnswerSequence() != 0 {
			t.Errorf("ended turn = %v, want no answer sequences", turn)
		}
		if got := f.header("a").GetExpireTime().AsTime(); !got.Equal(f.clock.Now().Add(time.Hour)) {
			t.Errorf("expire_time = %v, want one hour after the end of the turn", got)
		}
	})
	t.Run("creates the conversation", func(t *testing.T) {
		f := s.open(t, nil)
		started := f.beginTurn("a", "turn")
		if !started.Created || started.Turn.GetInputSequence() != 1 || started.Conversation.GetVersion() != 1 {
			t.Errorf("Append with Begin = %v", started)
		}
	})
	t.Run("the newest 32 are kept, oldest first", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range 35 {
			f.beginTurn("a", fmt.Sprint("turn ", i))
			f.endTurn("a", fmt.Sprint("turn ", i))
		}
		turns := f.read("a").Turns
		if len(turns) != 32 {
			t.Fatalf("Read returned %d turns, want 32", len(turns))
		}
		for i, turn := range turns {
			if want := fmt.Sprint("turn ", i+3); turn.GetId() != want ||
				turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
				t.Errorf("turn %d = %v, want %s", i, turn, want)
			}
		}
	})
	t.Run("deleted while it runs", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurn("a", "turn")
		f.do(&store.Delete{ConversationID: "a"})
		ending := &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{assistant("late")}, End: &parleyv1.Turn{Id: "turn"},
		}
		f.expectError(ending, store.ErrNotFound)
		f.create("a")
		f.expectError(ending, store.ErrTurnEnded)
	})
}

// requests tests which requests are stored.
func (s Subject) requests(t *testing.T) {
	t.Run("a retry returns the first result", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 3 })
		f.append("a", user("before"))
		write := &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question"), assistant("draft")},
			Begin: &parleyv1.Turn{Id: "turn", RequestId: "r"}, Request: request("r", "question"), IfVersion: new(int32(1)),
		}
		first := f.do(write)
		f.clock.Advance(time.Minute)
		again := func(what string, change func(want *store.Result)) {
			t.Helper()
			before := f.all()
			f.observer.drain()
			write.Begin.Id = "another turn" // A retry does not know the turn id of the first call.
			want := *first
			want.Conversation, want.Replayed = f.header("a"), true
			change(&want)
			same(t, what, f.do(write), &want)
			same(t, what+": conversations", f.all(), before)
			if changes := f.observer.drain(); len(changes) > 0 {
				t.Errorf("%s: reported %v", what, summaries(changes))
			}
		}
		again("while the turn runs", func(*store.Result) {})
		turn := f.endTurn("a", "turn").Turn
		again("after the turn ended", func(want *store.Result) { want.Turn = turn })
		f.append("a", user("three"), user("that"), user("follow"))
		again("after its messages were dropped", func(want *store.Result) { want.Turn = turn })
		for i := range 32 {
			f.beginTurn("a", fmt.Sprint("turn ", i))
			f.endTurn("a", fmt.Sprint("turn ", i))
		}
		again("after its turn was dropped", func(want *store.Result) { want.Turn = nil })
	})
	t.Run("of Create", func(t *testing.T) {
		f := s.open(t, nil)
		creating := &store.Create{
			Conversation: &parleyv1.Conversation{Id: "a"}, Request: &store.Request{ID: "r", Method: "CreateConversation"},
		}
		f.do(creating)
		f.append("a", user("hello"))
		same(t, "a retry", f.do(creating), &store.Result{Conversation: f.header("a"), Created: true, Replayed: true})
		reused := *creating
		reused.Request = &store.Request{ID: "r", Method: "CreateConversation", Digest: [32]byte{1}}
		f.expectError(&reused, store.ErrRequestReused)
		reused.OrGet = true
		f.expectError(&reused, store.ErrRequestReused)
		reused.Request = &store.Request{ID: "r", Method: "LoadConversation", Digest: [32]byte{1}}
		if got := f.do(&reused); got.Replayed {
			t.Error("the same id in another method was replayed, want a new request")
		}
	})
	t.Run("each method has its own ids", func(t *testing.T) {
		f := s.open(t, nil)
		for i, method := range []string{"AppendMessages", "Chat"} {
			r := request("r", "content "+method)
			r.Method = method
			result := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
			if result.Replayed || result.Appended[0].GetSequence() != int32(i)+1 {
				t.Errorf("Append for %s = %v, want a new request", method, result)
			}
		}
	})
	t.Run("a failed request is not stored", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		failing := &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: request("r", "hello"),
			IfVersion: new(int32(9)),
		}
		f.expectError(failing, &store.VersionError{Current: 1, Required: 9})
		failing.IfVersion = nil
		if f.do(failing).Replayed {
			t.Error("a failed request was replayed")
		}
	})
	t.Run("the newest 32", func(t *testing.T) {
		f := s.open(t, nil)
		send := func(i int) *store.Result {
			name := fmt.Sprint("r", i)
			return f.do(&store.Append{
				ConversationID: "a", Messages: []*parleyv1.Message{user(name)}, Request: request(name, name),
			})
		}
		for i := range 40 {
			send(i)
		}
		for i := 8; i < 40; i++ {
			if result := send(i); !result.Replayed || result.Appended[0].GetSequence() != int32(i)+1 {
				t.Errorf("retry of request %d = %v, want the first result", i, result)
			}
		}
		if send(7).Replayed {
			t.Error("the 33rd newest request was replayed")
		}
	})
}
