package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Paths of the fields that these tests change.
const (
	keepAll    = "retention.keep_all"
	noExpiry   = "retention.no_expiry"
	noEviction = "retention.no_eviction"
)

// with returns a conversation with this retention.
func with(id string, retention *parleyv1.Retention) *parleyv1.Conversation {
	return &parleyv1.Conversation{Id: id, Retention: retention}
}

// createWith creates a conversation with this retention, one millisecond after the previous step.
func (f *fixture) createWith(id string, retention *parleyv1.Retention) {
	f.t.Helper()
	f.clock.Advance(time.Millisecond)
	f.do(&store.Create{Conversation: with(id, retention)})
}

// setRetention sets one field of the retention.
func (f *fixture) setRetention(id, field string, retention *parleyv1.Retention) *parleyv1.Conversation {
	f.t.Helper()
	return f.do(&store.Update{ConversationID: id, Fields: []string{field}, Values: with("", retention)}).Conversation
}

func (s Subject) law05NoExpiry(t *testing.T) {
	open := func(t *testing.T) *fixture {
		t.Helper()
		return s.open(t, func(o *store.Options) { o.TTL = time.Hour })
	}
	const long = 400 * 24 * time.Hour
	stays := func(f *fixture, id string) {
		f.t.Helper()
		for range 3 {
			f.clock.Advance(long)
			f.sweep()
			if c := f.header(id); c.GetExpireTime() != nil {
				f.t.Errorf("expire_time of %s = %v, want none", id, c.GetExpireTime())
			}
		}
		if s.Durable {
			f.reopen(nil)
			f.sweep()
			f.header(id)
		}
	}
	t.Run("from the creation", func(t *testing.T) {
		f := open(t)
		f.createWith("a", &parleyv1.Retention{NoExpiry: true})
		f.create("b")
		stays(f, "a")
		f.missing("b")
		f.append("a", user("hello"))
		f.endTurn("a", f.beginTurn("a", "turn").Turn.GetId())
		stays(f, "a")
		if n := f.stats().Conversations; n != 1 {
			t.Errorf("Stats().Conversations = %d, want 1", n)
		}
	})
	t.Run("from an update, and back", func(t *testing.T) {
		f := open(t)
		f.append("a", user("hello"))
		appended := f.clock.Now()
		if c := f.setRetention("a", noExpiry, &parleyv1.Retention{NoExpiry: true}); c.GetExpireTime() != nil {
			t.Errorf("expire_time = %v, want none", c.GetExpireTime())
		}
		f.clock.Advance(30 * time.Minute)
		c := f.setRetention("a", noExpiry, nil)
		if at := c.GetExpireTime().AsTime(); !at.Equal(appended.Add(time.Hour)) {
			t.Errorf("expire_time = %v, want an hour after the append at %v", at, appended)
		}
		f.clock.Advance(30*time.Minute - 1)
		f.header("a")
		f.clock.Advance(1)
		f.expired("a")
	})
	t.Run("back after the ttl", func(t *testing.T) {
		f := open(t)
		f.createWith("a", &parleyv1.Retention{NoExpiry: true})
		stays(f, "a")
		f.setRetention("a", noExpiry, nil)
		f.expired("a")
	})
	t.Run("swept after it was set back", func(t *testing.T) {
		f := open(t)
		f.createWith("a", &parleyv1.Retention{NoExpiry: true})
		stays(f, "a")
		f.setRetention("a", noExpiry, nil)
		f.clock.Advance(sweepSlack)
		f.sweep()
		if n := f.stats().Conversations; n != 0 {
			t.Errorf("Stats().Conversations = %d, want 0", n)
		}
	})
	t.Run("import", func(t *testing.T) {
		f := open(t)
		i := f.newImport("a", long)
		i.Conversation.Retention.NoExpiry = true
		f.do(i)
		stays(f, "a")
	})
	t.Run("an ephemeral conversation is deleted nevertheless", func(t *testing.T) {
		f := open(t)
		f.createWith("a", &parleyv1.Retention{NoExpiry: true})
		h := &store.Hold{Tenant: tenant, ConversationIDs: []string{"a"}, DeleteAfter: time.Minute}
		if err := errors.Join(f.store.Hold(t.Context(), h), f.store.Release(t.Context(), h)); err != nil {
			t.Fatal(err)
		}
		f.header("a")
		f.clock.Advance(time.Minute)
		f.missing("a")
	})
}

func (s Subject) law11NoEviction(t *testing.T) {
	// full returns a store with the conversations a and c, which cannot be evicted, and b, which can.
	full := func(t *testing.T) *fixture {
		t.Helper()
		f := s.open(t, func(o *store.Options) { o.MaxConversations = 3 })
		f.createWith("a", &parleyv1.Retention{NoEviction: true})
		f.create("b")
		f.createWith("c", &parleyv1.Retention{NoEviction: true})
		return f
	}
	remaining := func(f *fixture, want ...string) {
		f.t.Helper()
		same(f.t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{want})
	}
	t.Run("skipped", func(t *testing.T) {
		f := full(t)
		f.create("d")
		f.settle()
		remaining(f, "d", "c", "a")
		f.create("e")
		f.settle()
		remaining(f, "e", "c", "a")
	})
	t.Run("no other left", func(t *testing.T) {
		f := full(t)
		f.setRetention("b", noEviction, &parleyv1.Retention{NoEviction: true})
		f.whenFull("d", 3, func() {
			f.expectError(&store.Create{Conversation: with("d", nil)}, store.ErrFull)
			f.expectError(&store.Append{ConversationID: "d", Messages: []*parleyv1.Message{user("hello")}}, store.ErrFull)
		})
		f.append("a", user("existing conversation"))
		f.setRetention("c", noEviction, nil)
		f.create("d")
		f.settle()
		remaining(f, "d", "b", "a")
		f.setRetention("a", noEviction, nil)
		f.create("e")
		f.settle()
		remaining(f, "e", "d", "b") // The oldest again, although it was skipped before.
	})
	t.Run("expired", func(t *testing.T) {
		f := full(t)
		f.clock.Advance(2 * time.Hour)
		f.create("d")
		remaining(f, "d")
	})
	t.Run("lowered capacity", func(t *testing.T) {
		f, limits := s.openLimited(t)
		f.createWith("a", &parleyv1.Retention{NoEviction: true})
		f.create("b")
		f.createWith("c", &parleyv1.Retention{NoEviction: true})
		limits.set(store.Limits{MaxConversations: 1})
		f.sweep() // The loop ends although the tenant stays over its limit.
		remaining(f, "c", "a")
		f.setRetention("a", noEviction, nil)
		f.sweep()
		remaining(f, "c")
	})
}

func (s Subject) law16KeepAll(t *testing.T) {
	const limit = 10_000
	open := func(t *testing.T) *fixture {
		t.Helper()
		f := s.open(t, func(o *store.Options) { o.MaxMessages, o.MaxConversationBytes = 3, limit })
		f.createWith("a", &parleyv1.Retention{KeepAll: true})
		return f
	}
	sized := func(n int) *parleyv1.Message {
		return &parleyv1.Message{Id: "id", Role: parleyv1.Role_ROLE_ASSISTANT, Content: strings.Repeat("x", n)}
	}
	kept := func(f *fixture, want int) {
		f.t.Helper()
		f.consistent()
		for n, m := range f.messages("a") {
			if m.GetSequence() != int32(n)+1 {
				f.t.Fatalf("message %d has sequence %d", n, m.GetSequence())
			}
		}
		if c := f.header("a"); int(c.GetMessageCount()) != want {
			f.t.Errorf("message_count = %d, want %d", c.GetMessageCount(), want)
		}
	}
	isFull := func(f *fixture, write any) {
		f.t.Helper()
		before := f.all()
		_, err := f.try(write)
		if full, ok := errors.AsType[*store.ConversationFullError](err); !ok || full.Limit != limit || full.Bytes <= limit {
			f.t.Errorf("%T = %v, want a ConversationFullError with the limit %d", write, err, limit)
		}
		same(f.t, "conversations after a refused write", f.all(), before)
	}
	t.Run("more than max_messages", func(t *testing.T) {
		f := open(t)
		for range 30 {
			f.append("a", user("one"), assistant("two"))
		}
		kept(f, 60)
		if s.Durable {
			f.reopen(nil)
			kept(f, 60)
		}
	})
	t.Run("full", func(t *testing.T) {
		f := open(t)
		f.append("a", sized(limit/2))
		f.append("a", sized(limit/4))
		isFull(f, &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{sized(limit / 4)}})
		isFull(f, &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{sized(limit / 4)}, Begin: &parleyv1.Turn{Id: "turn"},
		})
		f.append("a", user("small"))
		f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(1))})
		f.append("a", sized(limit/4))
	})
	t.Run("the end of a turn", func(t *testing.T) {
		f := open(t)
		f.append("a", sized(limit-2000))
		f.beginTurn("a", "turn")
		f.do(&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{sized(limit)}, End: &parleyv1.Turn{Id: "turn"},
		})
		kept(f, 3)
		isFull(f, &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("small")}})
		isFull(f, &store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "next", InputSequence: 2}})
		if s.Durable {
			f.reopen(nil)
			kept(f, 3)
		}
		f.setRetention("a", "retention.max_messages", &parleyv1.Retention{MaxMessages: 1})
		kept(f, 3)
		if c := f.setRetention("a", keepAll, nil); c.GetMessageCount() != 1 || c.GetLastSequence() != 3 {
			t.Errorf("keep_all = false keeps %d messages, want the newest one", c.GetMessageCount())
		}
	})
	t.Run("the first message", func(t *testing.T) {
		f := open(t)
		f.append("a", sized(2*limit))
		kept(f, 1)
		isFull(f, &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("small")}})
		isFull(f, &store.Append{
			ConversationID: "new", Messages: []*parleyv1.Message{user("small"), sized(limit)},
			CreateWith: with("", &parleyv1.Retention{KeepAll: true}),
		})
	})
	t.Run("copies", func(t *testing.T) {
		f := open(t)
		f.append("a", sized(limit/2))
		f.beginTurn("a", "turn")
		f.do(&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{sized(limit)}, End: &parleyv1.Turn{Id: "turn"},
		})
		source := f.read("a")
		c := proto.CloneOf(source.Conversation)
		c.Id = "fork"
		f.do(&store.Create{Conversation: c, Messages: source.Messages})
		c.Id = "import"
		f.do(&store.Import{Conversation: c, Messages: source.Messages})
		for _, id := range []string{"fork", "import"} {
			if got := f.read(id); string(got.Messages) != string(source.Messages) {
				t.Errorf("%s has %d messages, want all %d", id, got.Messages.Count(), source.Messages.Count())
			}
		}
		c.Id, c.LastSequence = "too large", 4
		next := sized(limit)
		next.Sequence = 4
		larger := slices.Concat(source.Messages, frames(t, next))
		for _, write := range []any{
			&store.Create{Conversation: c, Messages: larger}, &store.Import{Conversation: c, Messages: larger},
		} {
			_, err := f.try(write)
			if full, ok := errors.AsType[*store.ConversationFullError](err); !ok || full.Limit != 2*limit {
				t.Errorf("%T = %v, want a ConversationFullError with twice the limit", write, err)
			}
		}
	})
}

// appendCreateWith tests Append.CreateWith.
func (s Subject) appendCreateWith(t *testing.T) {
	chosen := &parleyv1.Conversation{
		Id: "ignored", Title: "title", Labels: map[string]string{"k": "v"}, Agent: "writer", SystemPrompt: "be brief",
		Retention: &parleyv1.Retention{MaxMessages: 2, KeepAll: true, NoExpiry: true, NoEviction: true},
		Version:   41, ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "forged"},
	}
	f := s.open(t, nil)
	q := request("r", "content")
	write := func() *store.Append {
		return &store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("1"), user("2"), user("3")},
			CreateWith: proto.CloneOf(chosen), Request: q,
		}
	}
	result := f.do(write())
	got := f.header("a")
	want := proto.CloneOf(got)
	want.Id, want.Title, want.Labels, want.Agent, want.SystemPrompt = "a", "title", map[string]string{"k": "v"}, "writer",
		"be brief"
	want.Retention = proto.CloneOf(chosen.GetRetention())
	want.Retention.Ttl = got.GetRetention().GetTtl()
	want.Version, want.MessageCount, want.ForkedFrom, want.ExpireTime = 1, 3, nil, nil
	same(t, "header", got, want)
	if !result.Created || result.Conversation.GetSystemPrompt() != "" {
		t.Errorf("Append = %+v, want Created, without the system prompt", result)
	}
	if again := f.do(write()); !again.Replayed || !again.Created {
		t.Errorf("second Append = %+v, want the first result", again)
	}

	other := &parleyv1.Conversation{Title: "other", Retention: &parleyv1.Retention{MaxMessages: 1}}
	f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("4")}, CreateWith: other})
	c := f.header("a")
	if c.GetTitle() != "title" || !c.GetRetention().GetKeepAll() || c.GetMessageCount() != 4 {
		t.Errorf("CreateWith changed an existing conversation to %v", c)
	}

	large := &parleyv1.Conversation{SystemPrompt: strings.Repeat("x", store.MaxHeaderBytes)}
	_, err := f.try(&store.Append{ConversationID: "b", Messages: []*parleyv1.Message{user("1")}, CreateWith: large})
	if _, ok := errors.AsType[*store.HeaderTooLargeError](err); !ok {
		t.Errorf("Append with a large CreateWith = %v, want a HeaderTooLargeError", err)
	}
	f.missing("b")

	begin := &parleyv1.Turn{Id: "turn", Agent: "writer"}
	f.do(&store.Append{ConversationID: "c", Messages: []*parleyv1.Message{user("1")}, Begin: begin, CreateWith: other})
	if c := f.header("c"); c.GetTitle() != "other" || c.GetRetention().GetMaxMessages() != 1 {
		t.Errorf("conversation that a turn created = %v", c)
	}
}
