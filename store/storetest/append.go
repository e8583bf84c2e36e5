package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// append tests Append without turns.
func (s Subject) append(t *testing.T) {
	t.Run("sequences, times and status are set by the store", func(t *testing.T) {
		for _, instant := range []time.Time{newClock().now, time.Unix(1_800_000_000, 0).UTC()} {
			f := s.open(t, nil)
			f.clock.now = instant
			plain := &parleyv1.Message{
				Id: "1", Role: parleyv1.Role_ROLE_ASSISTANT, Content: "hello", Agent: "writer", Summary: "greeted",
				FinishReason: "stop",
				Metadata:     map[string]string{"k": "v"}, TurnId: "turn", Usage: &parleyv1.Usage{Model: "m", InputTokens: 3},
				ToolCalls:   []*parleyv1.ToolCall{{Id: "call", Name: "search", Arguments: "{}"}},
				Attachments: []*parleyv1.Attachment{{Uri: "https://example.com/a.png", MediaType: "image/png"}},
				Native:      &parleyv1.Native{Type: "form", Value: []byte("\xff\x00{")}, Reasoning: "because",
			}
			forged := proto.CloneOf(plain)
			forged.Id, forged.Role, forged.ToolCalls = "2", parleyv1.Role_ROLE_USER, nil
			forged.Sequence, forged.Exchange, forged.Status = 77, 78, parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
			forged.CreateTime = &timestamppb.Timestamp{Seconds: 79, Nanos: 80}
			want := []*parleyv1.Message{proto.CloneOf(plain), proto.CloneOf(forged)}
			for i, m := range want {
				m.Sequence, m.CreateTime = int32(i)+1, timestamppb.New(instant)
			}
			want[0].Status, want[1].Exchange = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE, 1
			result := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{plain, forged}})
			same(t, "messages", f.messages("a"), want)
			same(t, "appended", result.Appended, []*parleyv1.AppendedMessage{
				{Id: "1", Sequence: 1, CreateTime: timestamppb.New(instant)},
				{Id: "2", Sequence: 2, Exchange: 1, CreateTime: timestamppb.New(instant)},
			})
		}
	})
	t.Run("header", func(t *testing.T) {
		f := s.open(t, nil)
		created := f.create("a").Conversation
		result := f.append("a", user("hello"), assistant("hi"))
		snapshot := f.read("a")
		want := created
		want.Version, want.LastSequence, want.MessageCount, want.SizeBytes = 2, 2, 2, int32(len(snapshot.Messages))
		now := f.clock.Now()
		want.UpdateTime, want.LastAppendTime, want.ExpireTime = timestamppb.New(now), timestamppb.New(now),
			timestamppb.New(now.Add(time.Hour))
		same(t, "result", result.Conversation, want)
		same(t, "read", snapshot.Conversation, want)
		if result.Created || result.Replayed || result.Turn != nil {
			t.Errorf("Append to an existing conversation = %+v, want neither Created nor Replayed nor a Turn", result)
		}
	})
	t.Run("one write reads the clock once", func(t *testing.T) {
		f := s.open(t, nil)
		f.clock.tick = time.Second
		f.append("a", user("one"), user("two"))
		c, messages := f.header("a"), f.messages("a")
		for _, at := range []*timestamppb.Timestamp{
			c.GetUpdateTime(), c.GetLastAppendTime(), messages[0].GetCreateTime(), messages[1].GetCreateTime(),
		} {
			if !proto.Equal(at, c.GetCreateTime()) {
				t.Errorf("time = %v, want %v, the time of the write", at, c.GetCreateTime())
			}
		}
	})
	t.Run("exchanges", func(t *testing.T) {
		f := s.open(t, nil)
		var got []int32
		for _, batch := range [][]*parleyv1.Message{
			{assistant("welcome"), {Role: parleyv1.Role_ROLE_SYSTEM, Content: "note"}},
			{user("one")},
			{assistant("first"), assistant("second")},
			{user("two"), user("three"), assistant("third")},
			{assistant("fourth")},
		} {
			for _, a := range f.append("a", batch...).Appended {
				got = append(got, a.GetExchange())
			}
		}
		same(t, "exchanges", got, []int32{0, 0, 1, 1, 1, 2, 3, 3, 3})
		for i, m := range f.messages("a") {
			if m.GetExchange() != got[i] {
				t.Errorf("message %d is stored with exchange %d, want %d as in the result", i, m.GetExchange(), got[i])
			}
		}
	})
	t.Run("must exist", func(t *testing.T) {
		f := s.open(t, nil)
		f.expectError(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, MustExist: true},
			store.ErrNotFound)
		f.create("a")
		f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, MustExist: true})
		uid := f.header("a").GetUid()
		f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, UID: uid})
		f.do(&store.Delete{ConversationID: "a"})
		f.expectError(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, UID: uid},
			store.ErrNotFound)
		f.create("a")
		f.expectError(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, UID: uid},
			store.ErrNotFound)
	})
}

// appendChecks tests the order of Append's checks. A write that fails two checks returns the error
// of the first.
func (s Subject) appendChecks(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
	seen := request("seen", "content")
	f.do(&store.Append{ConversationID: "idle", Messages: []*parleyv1.Message{user("hello")}, Request: seen})
	f.do(&store.Append{ConversationID: "busy", Messages: []*parleyv1.Message{user("hello")}, Request: seen})
	f.beginTurn("busy", "turn")
	begin, end := &parleyv1.Turn{Id: "new"}, &parleyv1.Turn{Id: "foreign"}
	busy := &store.BusyError{TurnID: "turn"}
	version := func(current, required int32) error { return &store.VersionError{Current: current, Required: required} }
	for _, test := range []struct {
		name  string
		write store.Append
		want  error
	}{
		{
			"request reused, before all others",
			store.Append{
				ConversationID: "busy", Request: request("seen", "other"), Begin: begin, IfVersion: new(int32(9)), MustExist: true,
			},
			store.ErrRequestReused,
		},
		{
			"missing, before version",
			store.Append{ConversationID: "none", MustExist: true, IfVersion: new(int32(9))},
			store.ErrNotFound,
		},
		{
			"missing with a turn to end, before version",
			store.Append{ConversationID: "none", End: end, IfVersion: new(int32(9))},
			store.ErrNotFound,
		},
		{"busy, before version", store.Append{ConversationID: "busy", Begin: begin, IfVersion: new(int32(9))}, busy},
		{"busy", store.Append{ConversationID: "busy", Begin: begin, IfVersion: new(int32(2))}, busy},
		{"version, before turn", store.Append{ConversationID: "busy", End: end, IfVersion: new(int32(9))}, version(2, 9)},
		{"version 0 of an existing conversation", store.Append{ConversationID: "idle", IfVersion: new(int32)}, version(1, 0)},
		{
			"version of a missing conversation, before capacity",
			store.Append{ConversationID: "none", IfVersion: new(int32(9))},
			version(0, 9),
		},
		{"another turn", store.Append{ConversationID: "busy", End: end, IfVersion: new(int32(2))}, store.ErrTurnEnded},
		{"no turn", store.Append{ConversationID: "idle", End: end}, store.ErrTurnEnded},
		{"a turn without an id", store.Append{ConversationID: "idle", End: &parleyv1.Turn{}}, store.ErrTurnEnded},
	} {
		t.Log(test.name)
		test.write.Messages = []*parleyv1.Message{user("new")}
		f.expectError(&test.write, test.want)
	}
	f.beginTurn("idle", "turn")
	f.whenFull("none", 2, func() {
		f.expectError(&store.Append{
			ConversationID: "none", Messages: []*parleyv1.Message{user("new")}, IfVersion: new(int32),
		}, store.ErrFull)
	})
	// A request that was already used is returned before any other check.
	replay := f.do(&store.Append{
		ConversationID: "busy", Messages: []*parleyv1.Message{user("hello")}, Request: seen,
		Begin: begin, IfVersion: new(int32), MustExist: true,
	})
	if !replay.Replayed {
		t.Errorf("retry = %+v, want Replayed", replay)
	}
	// With the right version the write succeeds.
	f.do(&store.Append{
		ConversationID: "busy", Messages: []*parleyv1.Message{user("new")}, IfVersion: new(int32(2)),
		End: &parleyv1.Turn{Id: "turn"},
	})
	f.do(&store.Append{ConversationID: "none", Messages: []*parleyv1.Message{user("new")}, IfVersion: new(int32)})
}

// trim tests which messages a conversation keeps.
func (s Subject) trim(t *testing.T) {
	batch := func(from, n, size int) []*parleyv1.Message {
		messages := make([]*parleyv1.Message, n)
		for i := range messages {
			messages[i] = assistant(fmt.Sprint(from+i, strings.Repeat("x", size)), fmt.Sprint("type ", from+i))
		}
		return messages
	}
	kept := func(f *fixture, first, last int32) {
		f.t.Helper()
		var got, want []int32
		for frame := range f.read("a").Messages.All() {
			got = append(got, frame.Sequence())
		}
		for n := first; n <= last; n++ {
			want = append(want, n)
		}
		same(f.t, "sequences kept", got, want)
		f.consistent()
		for n := int32(1); n <= last; n++ {
			l := store.List{PageSize: 1, StructuredDataType: fmt.Sprint("type ", n)}
			if found := len(f.list(l).Entries) == 1; found != (n >= first) {
				f.t.Errorf("List with the type of message %d finds the conversation: %t", n, found)
			}
		}
	}
	t.Run("by count", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 4 })
		f.append("a", batch(1, 3, 1)...)
		kept(f, 1, 3)
		f.append("a", batch(4, 3, 1)...)
		kept(f, 3, 6)
	})
	t.Run("a batch larger than the limit", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 4 })
		result := f.append("a", batch(1, 9, 1)...)
		if n := len(result.Appended); n != 9 || result.Appended[8].GetSequence() != 9 {
			t.Errorf("Append of 9 messages returned %d: %v", n, result.Appended)
		}
		kept(f, 6, 9)
		changes := f.observer.drain()
		if len(changes) != 10 || changes[1].Message.Sequence() != 1 || changes[9].Trimmed != 5 || changes[9].Count != 4 {
			t.Errorf("changes = %v, want 10 with 5 messages trimmed by the last", summaries(changes))
		}
	})
	t.Run("by bytes", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxConversationBytes = 10_000 })
		f.append("a", batch(1, 9, 1000)...)
		if c := f.header("a"); c.GetSizeBytes() > 10_000 || c.GetSizeBytes() < 7000 {
			t.Errorf("size_bytes = %d, want at most 10000, and at least 7000 after small messages", c.GetSizeBytes())
		}
		f.append("a", batch(10, 1, 7000)...)
		f.append("a", batch(11, 1, 1000)...)
		if c := f.header("a"); c.GetSizeBytes() > 10_000 {
			t.Errorf("size_bytes = %d, want at most 10000, and at least 7000 after small messages", c.GetSizeBytes())
		}
		f.append("a", batch(12, 1, 20_000)...)
		kept(f, 12, 12) // The newest message is kept whatever its size.
		f.append("a", batch(13, 1, 10)...)
		kept(f, 13, 13)
	})
	t.Run("by a lower limit", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", batch(1, 6, 1)...)
		f.do(&store.Update{
			ConversationID: "a", Fields: []string{"retention.max_messages"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 2}},
		})
		kept(f, 5, 6)
		f.append("a", batch(7, 1, 1)...)
		kept(f, 6, 7)
	})
}
