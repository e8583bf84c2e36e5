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

// create is the test of Create.
func (s Subject) create(t *testing.T) {
	t.Run("what the client chose, and nothing else", func(t *testing.T) {
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
		want.CreateTime, want.UpdateTime, want.LastAppendTime = timestamppb.New(now), timestamppb.New(now), timestamppb.New(now)
		want.ExpireTime = timestamppb.New(now.Add(time.Minute))
		same(t, "result", result, &store.Result{Conversation: want, Created: true})
		same(t, "header", f.header("a"), want)
		if uid := want.GetUid(); uid == "" || uid == "uid" {
			t.Errorf("uid %q", uid)
		}
	})
	t.Run("defaults", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages, o.TTL = 5, time.Minute })
		defaults := &parleyv1.Retention{MaxMessages: 5, Ttl: durationpb.New(time.Minute)}
		same(t, "none given", f.create("a").Conversation.GetRetention(), defaults)
		same(t, "by Append", f.append("b", user("hello")).Conversation.GetRetention(), defaults)
		c := f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{MaxMessages: 9}}}).Conversation
		same(t, "ttl", c.GetRetention(), &parleyv1.Retention{MaxMessages: 9, Ttl: durationpb.New(time.Minute)})
		zero := s.open(t, nil).create("a").Conversation.GetRetention()
		same(t, "of the zero options", zero, &parleyv1.Retention{MaxMessages: 20, Ttl: durationpb.New(time.Hour)})
	})
	t.Run("zero options", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { *o = store.Options{} })
		earlier := time.Now()
		at := f.append("a", user("hello")).Appended[0].GetCreateTime().AsTime()
		if at.Before(earlier) || at.After(time.Now()) {
			t.Errorf("a message of now has the time %v", at)
		}
	})
	t.Run("an id that is taken", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("hello"))
		before := f.header("a")
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}}, store.ErrConversationExists)
		f.seen.take()
		got := f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a", Title: "other"}, OrGet: true, Request: request("r", "")})
		same(t, "or get", got, &store.Result{Conversation: before})
		same(t, "after or get", f.header("a"), before)
		if changes := f.seen.take(); len(changes) > 0 {
			t.Errorf("told of %v", brief(changes))
		}
		// The request made nothing, so it is not remembered.
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, Request: request("r", "")}, store.ErrConversationExists)
	})
	t.Run("an id that is free again", func(t *testing.T) {
		f := s.open(t, nil)
		r := request("r", "hello")
		first := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
		f.do(&store.Delete{ConversationID: "a"})
		second := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
		if second.Replayed || !second.Created || second.Appended[0].GetSequence() != 1 || second.Conversation.GetVersion() != 1 {
			t.Errorf("after Delete: %v", second)
		}
		if first.Conversation.GetUid() == second.Conversation.GetUid() {
			t.Error("both have the same uid")
		}
	})
	t.Run("fork", s.fork)
}

func (s Subject) fork(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 5 })
	f.append("source", user("q1"), assistant("a1", "list"), user("q2"), assistant("a2", "table"), user("q3"), assistant("a3"))
	f.clock.Advance(10 * time.Minute)
	source := f.read("source")
	forking := &store.Create{
		Conversation: &parleyv1.Conversation{Id: "fork", ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "source", Sequence: 4}},
		Messages:     source.Messages[:len(source.Messages)-len(source.Messages.Newest(2))],
		Request:      &store.Request{ID: "r", Method: "ForkConversation", Digest: sha256.Sum256(nil)},
	}
	f.seen.take()
	result := f.do(forking)
	same(t, "changes", brief(f.seen.take()), []string{"CREATED fork version 1 count 3 trimmed 0"})
	want := f.messages("source")[:3]
	same(t, "messages", f.messages("fork"), want)
	c := f.header("fork")
	same(t, "result", result.Conversation, c)
	if c.GetLastSequence() != 4 || c.GetMessageCount() != 3 || int(c.GetSizeBytes()) != len(forking.Messages) || c.GetVersion() != 1 {
		t.Errorf("header: %v", c)
	}
	if ttl := c.GetExpireTime().AsTime().Sub(f.clock.Now()); ttl != time.Hour {
		t.Errorf("it lives for %v, want an hour from now on", ttl)
	}
	rows := f.list(store.List{PageSize: 9, StructuredDataType: "table", Order: byUpdateTime})
	if got := ids(rows); len(got) != 2 || got[0] != "fork" || rows.Entries[0].GetPreview() != "a2" {
		t.Errorf("listed by type: %v", rows.Entries)
	}
	appended := f.append("fork", user("q3b"), assistant("a3b")).Appended
	if appended[0].GetSequence() != 5 || appended[0].GetExchange() != 3 || appended[1].GetExchange() != 3 {
		t.Errorf("it goes on with %v", appended)
	}
	same(t, "source", f.messages("source")[:3], want)
	if again := f.do(forking); !again.Replayed || !again.Created {
		t.Errorf("a retry gave %+v", again)
	}

	small := &parleyv1.Conversation{Id: "small", Retention: &parleyv1.Retention{MaxMessages: 2}}
	f.seen.take()
	f.do(&store.Create{Conversation: small, Messages: source.Messages})
	same(t, "the newest stay", f.messages("small"), f.messages("source")[3:])
	same(t, "changes", brief(f.seen.take()), []string{"CREATED small version 1 count 2 trimmed 3"})
}
