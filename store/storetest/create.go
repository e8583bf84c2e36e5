package storetest

import (
	"crypto/sha256"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// create tests Create.
func (s Subject) create(t *testing.T) {
	t.Run("only fields that the client may choose", func(t *testing.T) {
		f := s.open(t, nil)
		chosen := &parleyv1.Conversation{
			Id: "a", Title: "title", Labels: map[string]string{"team": "blue"}, Agent: "writer", SystemPrompt: "be brief",
			Retention:  &parleyv1.Retention{MaxMessages: 7, Ttl: durationpb.New(time.Minute)},
			ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "b", Sequence: 3},
		}
		in := proto.CloneOf(chosen)
		in.Version, in.LastSequence, in.MessageCount, in.SizeBytes = 9, 9, 9, 9
		in.ActiveAgent, in.ActiveTurnId, in.Uid = &parleyv1.ActiveAgent{Agent: "x"}, "turn", "uid"
		long := timestamppb.New(time.Unix(1, 0))
		in.CreateTime, in.UpdateTime, in.ExpireTime, in.LastAppendTime = long, long, long, long
		result := f.do(&store.Create{Conversation: in})
		now := f.clock.Now()
		want := chosen
		want.Uid = result.Conversation.GetUid()
		want.Version = 1
		want.CreateTime, want.UpdateTime, want.LastAppendTime = timestamppb.New(now), timestamppb.New(now),
			timestamppb.New(now)
		want.ExpireTime = timestamppb.New(now.Add(time.Minute))
		same(t, "result", result, &store.Result{Conversation: want, Created: true})
		same(t, "header", f.header("a"), want)
		if uid := want.GetUid(); uid == "" || uid == "uid" {
			t.Errorf("uid = %q, want one that the store chose", uid)
		}
	})
	t.Run("defaults", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages, o.TTL = 5, time.Minute })
		defaults := &parleyv1.Retention{MaxMessages: 5, Ttl: durationpb.New(time.Minute)}
		same(t, "no retention", f.create("a").Conversation.GetRetention(), defaults)
		same(t, "created by Append", f.append("b", user("hello")).Conversation.GetRetention(), defaults)
		nine := &parleyv1.Retention{MaxMessages: 9}
		c := f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "c", Retention: nine}}).Conversation
		same(t, "only max_messages", c.GetRetention(), &parleyv1.Retention{MaxMessages: 9, Ttl: durationpb.New(time.Minute)})
		zero := s.open(t, nil).create("a").Conversation.GetRetention()
		same(t, "zero options", zero, &parleyv1.Retention{MaxMessages: 20, Ttl: durationpb.New(time.Hour)})
	})
	t.Run("zero options", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { *o = store.Options{} })
		earlier := time.Now()
		at := f.append("a", user("hello")).Appended[0].GetCreateTime().AsTime()
		if at.Before(earlier) || at.After(time.Now()) {
			t.Errorf("create_time = %v, want the present time", at)
		}
	})
	t.Run("existing id", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("hello"))
		before := f.header("a")
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}}, store.ErrConversationExists)
		f.observer.drain()
		got := f.do(&store.Create{
			Conversation: &parleyv1.Conversation{Id: "a", Title: "other"}, OrGet: true, Request: request("r", ""),
		})
		same(t, "Create with OrGet", got, &store.Result{Conversation: before})
		same(t, "header after Create with OrGet", f.header("a"), before)
		if changes := f.observer.drain(); len(changes) > 0 {
			t.Errorf("Create with OrGet reported %v, want no changes", summaries(changes))
		}
		// The request created nothing, so it is not stored.
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, Request: request("r", "")},
			store.ErrConversationExists)
	})
	t.Run("id of a deleted conversation", func(t *testing.T) {
		f := s.open(t, nil)
		r := request("r", "hello")
		first := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
		f.do(&store.Delete{ConversationID: "a"})
		second := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
		if second.Replayed || !second.Created || second.Appended[0].GetSequence() != 1 ||
			second.Conversation.GetVersion() != 1 {
			t.Errorf("Append after Delete = %v, want a new conversation", second)
		}
		if first.Conversation.GetUid() == second.Conversation.GetUid() {
			t.Error("the new conversation has the uid of the deleted one")
		}
	})
	t.Run("fork", s.fork)
}

func (s Subject) fork(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 5 })
	f.append("source", user("q1"), assistant("a1", "list"), user("q2"), assistant("a2", "table"), user("q3"),
		assistant("a3"))
	f.clock.Advance(10 * time.Minute)
	source := f.read("source")
	forking := &store.Create{
		Conversation: &parleyv1.Conversation{
			Id: "fork", ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "source", Sequence: 4},
		},
		Messages: source.Messages[:len(source.Messages)-len(source.Messages.Newest(2))],
		Request:  &store.Request{ID: "r", Method: "ForkConversation", Digest: sha256.Sum256(nil)},
	}
	f.observer.drain()
	result := f.do(forking)
	same(t, "changes", summaries(f.observer.drain()), []string{"CREATED fork version 1 count 3 trimmed 0"})
	want := f.messages("source")[:3]
	same(t, "messages", f.messages("fork"), want)
	c := f.header("fork")
	same(t, "result", result.Conversation, c)
	if c.GetLastSequence() != 4 || c.GetMessageCount() != 3 || int(c.GetSizeBytes()) != len(forking.Messages) ||
		c.GetVersion() != 1 {
		t.Errorf("header of the fork = %v", c)
	}
	if ttl := c.GetExpireTime().AsTime().Sub(f.clock.Now()); ttl != time.Hour {
		t.Errorf("fork expires in %v, want 1h", ttl)
	}
	rows := f.list(store.List{PageSize: 9, StructuredDataType: "table", Order: byUpdateTime})
	if got := ids(rows); len(got) != 2 || got[0] != "fork" || rows.Entries[0].GetPreview() != "a2" {
		t.Errorf("List by type = %v", rows.Entries)
	}
	appended := f.append("fork", user("q3b"), assistant("a3b")).Appended
	if appended[0].GetSequence() != 5 || appended[0].GetExchange() != 3 || appended[1].GetExchange() != 3 {
		t.Errorf("Append to the fork = %v, want sequence 5 and exchange 3", appended)
	}
	same(t, "source", f.messages("source")[:3], want)
	if again := f.do(forking); !again.Replayed || !again.Created {
		t.Errorf("retry = %+v, want Replayed and Created", again)
	}

	small := &parleyv1.Conversation{Id: "small", Retention: &parleyv1.Retention{MaxMessages: 2}}
	f.observer.drain()
	f.do(&store.Create{Conversation: small, Messages: source.Messages})
	same(t, "fork with a lower limit", f.messages("small"), f.messages("source")[3:])
	same(t, "changes", summaries(f.observer.drain()), []string{"CREATED small version 1 count 2 trimmed 3"})
}
