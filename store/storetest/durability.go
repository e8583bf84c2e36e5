package storetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func (s Subject) law03Durability(t *testing.T) {
	t.Run("a batch is wholly there or not at all", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("there", user("hello"))
		for _, id := range []string{"there", "new"} {
			f.refuse(&store.Append{
				ConversationID: id, Messages: []*parleyv1.Message{user("good"), user("no UTF-8: \xff"), user("good")}, Request: request("r", ""),
			}, nil)
			f.refuse(&store.Append{
				ConversationID: id, Messages: []*parleyv1.Message{user("good")}, Begin: &parleyv1.Turn{Id: "turn", Agent: "\xff"},
			}, nil)
		}
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "new", Title: "\xff"}}, nil)
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "new"}, Request: request("\xff", "")}, nil)
		f.refuse(&store.Update{ConversationID: "there", Lease: &store.Lease{Agent: "writer", Reason: "\xff"}}, nil)
		whole := f.read("there").Messages
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, Messages: whole[:len(whole)-1]}, store.ErrCorrupt)
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, Messages: append(slices.Clone(whole), 0)}, store.ErrCorrupt)
		f.missing("new", "fork")
	})
	t.Run("written before Close", func(t *testing.T) {
		if !s.Durable {
			t.Skip("this store keeps nothing when it is closed")
		}
		f := s.open(t, nil)
		f.create("empty")
		for _, write := range writes(f) {
			f.do(write)
		}
		f.begin("running", "turn 2")
		f.append("cleared", user("one"), user("two"), user("three"))
		f.do(&store.Update{ConversationID: "cleared", KeepThrough: new(int32(1))})
		f.create("deleted")
		f.do(&store.Delete{ConversationID: "deleted"})
		token := f.list(store.List{PageSize: 2}).NextPageToken
		before, stats := f.all(), f.stats()

		for range 2 {
			f.reopen(nil)
			same(t, "after Close and Open", f.all(), before)
			after := f.stats()
			after.FileBytes, after.FileBytesInUse = stats.FileBytes, stats.FileBytesInUse
			same(t, "counts after Close and Open", after, stats)
			f.missing("deleted")
			if page := f.list(store.List{PageSize: 10, PageToken: token}); len(page.Entries) != len(before)-2 {
				t.Errorf("a token from before goes on with %v", ids(page))
			}
		}
		again := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("question")}, Request: request("r2", "question")})
		if !again.Replayed {
			t.Error("a request from before is not known any more")
		}
		if result := f.append("a", user("next")); result.Appended[0].GetSequence() != 5 {
			t.Errorf("sequence %d follows 4", result.Appended[0].GetSequence())
		}
	})
}

func (s Subject) progress(t *testing.T) {
	save := func(f *fixture, id, turn string, texts ...string) error {
		p := &store.Progress{Tenant: tenant, ConversationID: id, TurnID: turn}
		for _, text := range texts {
			p.Messages = append(p.Messages, assistant(text, "partial"))
		}
		return f.store.SaveProgress(t.Context(), p)
	}
	t.Run("only for the running turn", func(t *testing.T) {
		f := s.open(t, nil)
		f.begin("a", "ended")
		f.end("a", "ended")
		for _, test := range [][2]string{{"a", "ended"}, {"a", ""}, {"b", "turn"}} {
			if err := save(f, test[0], test[1]); !is(err, store.ErrTurnEnded) {
				t.Errorf("turn %q of %s: %v, want ErrTurnEnded", test[1], test[0], err)
			}
		}
		f.begin("a", "running")
		if err := save(f, "a", "ended"); !is(err, store.ErrTurnEnded) {
			t.Errorf("while another turn runs: %v, want ErrTurnEnded", err)
		}
		if err := save(f, "a", "running", "so far"); err != nil {
			t.Error(err)
		}
	})
	t.Run("changes neither version nor times", func(t *testing.T) {
		f := s.open(t, nil)
		f.begin("a", "turn")
		before := f.all()
		f.seen.take()
		f.clock.Advance(time.Second)
		if err := save(f, "a", "turn", "so far"); err != nil {
			t.Fatal(err)
		}
		same(t, "after SaveProgress", f.all(), before)
		if changes := f.seen.take(); len(changes) > 0 {
			t.Errorf("told of %v", brief(changes))
		}
	})
	t.Run("what runs in this process is not abandoned", func(t *testing.T) {
		f := s.open(t, nil)
		f.begin("a", "turn")
		f.abandoned(nil)
	})
	if s.Durable {
		t.Run("found after the store was closed", func(t *testing.T) { s.abandoned(t, save) })
	}
}

// abandoned leaves turns behind, in several ways.
func (s Subject) abandoned(t *testing.T, save func(f *fixture, id, turn string, texts ...string) error) {
	f := s.open(t, nil)
	for _, id := range []string{"saved", "twice", "unsaved", "ended", "deleted", "next"} {
		f.begin(id, "turn of "+id)
		if id != "unsaved" {
			if err := save(f, id, "turn of "+id, "draft", "of "+id); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := save(f, "twice", "turn of twice", "more"); err != nil {
		t.Fatal(err)
	}
	f.end("ended", "turn of ended")
	f.end("next", "turn of next")
	f.begin("next", "another turn")
	f.do(&store.Delete{ConversationID: "deleted"})
	f.begin("deleted", "turn of a new one")
	want := []store.Progress{
		{ConversationID: "deleted", TurnID: "turn of a new one"},
		{ConversationID: "next", TurnID: "another turn"},
		{ConversationID: "saved", TurnID: "turn of saved", Messages: []*parleyv1.Message{assistant("draft", "partial"), assistant("of saved", "partial")}},
		{ConversationID: "twice", TurnID: "turn of twice", Messages: []*parleyv1.Message{assistant("more", "partial")}},
		{ConversationID: "unsaved", TurnID: "turn of unsaved"},
	}
	f.clock.Advance(24 * time.Hour)
	f.reopen(nil)
	f.sweep()
	f.begin("begun since", "turn")
	f.abandoned(want)
	f.abandoned(want)

	// Whoever finds them ends them: then they are no more.
	for _, p := range want {
		f.do(&store.Append{
			ConversationID: p.ConversationID, Messages: p.Messages, MustExist: true,
			End: &parleyv1.Turn{Id: p.TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED},
		})
	}
	f.abandoned(nil)
	f.reopen(nil)
	f.abandoned([]store.Progress{{ConversationID: "begun since", TurnID: "turn"}})
}

// abandoned checks what Abandoned returns, in the order of conversation ids.
func (f *fixture) abandoned(want []store.Progress) {
	f.t.Helper()
	got, err := f.store.Abandoned(f.t.Context())
	if err != nil {
		f.t.Fatalf("Abandoned: %v", err)
	}
	for i := range want {
		want[i].Tenant = tenant
	}
	slices.SortFunc(got, func(a, b store.Progress) int { return strings.Compare(a.ConversationID, b.ConversationID) })
	same(f.t, "abandoned turns", got, want)
}
