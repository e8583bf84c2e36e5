package storetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// progress tests SaveProgress.
func (s Subject) progress(t *testing.T) {
	t.Run("only for the running turn", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurn("a", "ended")
		f.endTurn("a", "ended")
		for _, test := range [][2]string{{"a", "ended"}, {"a", ""}, {"b", "turn"}} {
			if err := f.save(test[0], test[1], turnEvents(1)); !errorIs(err, store.ErrTurnEnded) {
				t.Errorf("SaveProgress of turn %q of %s = %v, want ErrTurnEnded", test[1], test[0], err)
			}
		}
		f.beginTurn("a", "running")
		if err := f.save("a", "ended", turnEvents(1)); !errorIs(err, store.ErrTurnEnded) {
			t.Errorf("SaveProgress while another turn runs = %v, want ErrTurnEnded", err)
		}
		if err := f.save("a", "running", turnEvents(1), "so far"); err != nil {
			t.Error(err)
		}
	})
	t.Run("changes neither version nor times nor stored events", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurnWith("a", "turn", turnEvents(1))
		before := f.all()
		f.observer.drain()
		f.clock.Advance(time.Second)
		if err := f.save("a", "turn", turnEvents(2), "so far"); err != nil {
			t.Fatal(err)
		}
		same(t, "after SaveProgress", f.all(), before)
		if changes := f.observer.drain(); len(changes) > 0 {
			t.Errorf("SaveProgress reported %v", summaries(changes))
		}
	})
}

// abandoned tests Abandoned.
func (s Subject) abandoned(t *testing.T) {
	t.Run("not turns of this process", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurnWith("a", "turn", turnEvents(1))
		f.abandoned(nil)
	})
	if s.Durable {
		t.Run("turns that ran when the store was closed", s.abandonedAfterReopen)
		t.Run("with stored events", s.abandonedEvents)
		t.Run("page by page", s.abandonedPages)
	}
}

// abandonedAfterReopen reopens a store while turns are running that were saved in different ways.
func (s Subject) abandonedAfterReopen(t *testing.T) {
	f := s.open(t, nil)
	for _, id := range []string{"saved", "twice", "unsaved", "ended", "deleted", "next"} {
		f.beginTurn(id, "turn of "+id)
		if id != "unsaved" {
			if err := f.save(id, "turn of "+id, nil, "draft", "of "+id); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.save("twice", "turn of twice", nil, "more"); err != nil {
		t.Fatal(err)
	}
	f.endTurn("ended", "turn of ended")
	f.endTurn("next", "turn of next")
	f.beginTurn("next", "another turn")
	f.do(&store.Delete{ConversationID: "deleted"})
	f.beginTurn("deleted", "turn of a new one")
	want := []store.Progress{
		{ConversationID: "deleted", TurnID: "turn of a new one"},
		{ConversationID: "next", TurnID: "another turn"},
		{
			ConversationID: "saved", TurnID: "turn of saved",
			Messages: []*parleyv1.Message{assistant("draft", "partial"), assistant("of saved", "partial")},
		},
		{ConversationID: "twice", TurnID: "turn of twice", Messages: []*parleyv1.Message{assistant("more", "partial")}},
		{ConversationID: "unsaved", TurnID: "turn of unsaved"},
	}
	f.clock.Advance(24 * time.Hour)
	f.reopen(nil)
	f.sweep()
	f.beginTurn("started since", "turn")
	f.abandoned(want)
	f.abandoned(want)

	// The caller of Abandoned ends the turns; they are then no longer returned.
	for i := range want {
		f.interrupt(&want[i])
	}
	f.abandoned(nil)
	f.reopen(nil)
	f.abandoned([]store.Progress{{ConversationID: "started since", TurnID: "turn"}})
}

// abandonedEvents reopens a store while turns are running whose events were stored in different
// ways.
func (s Subject) abandonedEvents(t *testing.T) {
	f := s.open(t, nil)
	f.beginTurn("none", "turn")
	f.beginTurnWith("next", "ended", turnEvents(1))
	if err := f.save("next", "ended", turnEvents(2)); err != nil {
		t.Fatal(err)
	}
	f.endTurnWith("next", "ended", turnEvents(3))
	f.beginTurn("next", "turn")
	for _, id := range []string{"initial", "saved", "text only", "twice"} {
		f.beginTurnWith(id, "turn", turnEvents(4))
	}
	saved := turnEvents(5)
	for _, id := range []string{"saved", "twice"} {
		if err := f.save(id, "turn", saved, "so far"); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "the caller's message", saved, turnEvents(5))
	modify(saved)
	if err := f.save("twice", "turn", turnEvents(6)); err != nil {
		t.Fatal(err)
	}
	if err := f.save("text only", "turn", nil, "so far"); err != nil {
		t.Fatal(err)
	}
	soFar := []*parleyv1.Message{assistant("so far", "partial")}
	f.reopen(nil)
	for range 2 {
		got := f.abandoned([]store.Progress{
			{ConversationID: "initial", TurnID: "turn", Events: keptEvents(4, "turn", 1)},
			{ConversationID: "next", TurnID: "turn"},
			{ConversationID: "none", TurnID: "turn"},
			{ConversationID: "saved", TurnID: "turn", Messages: soFar, Events: turnEvents(5)},
			{ConversationID: "text only", TurnID: "turn", Messages: soFar, Events: keptEvents(4, "turn", 1)},
			{ConversationID: "twice", TurnID: "turn", Events: turnEvents(6)},
		})
		for _, p := range got {
			modify(p.Events)
			for _, m := range p.Messages {
				modify(m)
			}
		}
	}
}

// abandonedPages abandons more turns than one call returns. Some of them end or are deleted between
// two calls.
func (s Subject) abandonedPages(t *testing.T) {
	f := s.open(t, nil)
	left := make(map[string]bool)
	for i := range 300 {
		id := fmt.Sprint("c", i)
		left[id] = true
		f.beginTurnWith(id, "turn of "+id, turnEvents(1))
	}
	f.reopen(nil)
	after := ""
	for range 300 {
		page, next, err := f.store.Abandoned(t.Context(), after)
		if err != nil || len(page) == 0 && next != "" {
			t.Fatalf("Abandoned = %d turns, next %q, %v", len(page), next, err)
		}
		for i := range page {
			if !left[page[i].ConversationID] {
				t.Errorf("%s was returned twice, or after its end", page[i].ConversationID)
			}
			delete(left, page[i].ConversationID)
			if i%3 == 0 {
				f.interrupt(&page[i])
			}
		}
		if after = next; after == "" {
			break
		}
		// Delete the conversation at which the page ended, and end some turns of later pages.
		f.do(&store.Delete{ConversationID: page[len(page)-1].ConversationID})
		for _, id := range slices.Sorted(maps.Keys(left))[:min(3, len(left))] {
			delete(left, id)
			f.interrupt(&store.Progress{ConversationID: id, TurnID: "turn of " + id})
		}
	}
	if len(left) > 0 || after != "" {
		t.Errorf("%d turns are missing; the last next is %q", len(left), after)
	}
}

// save calls SaveProgress with messages of the given texts.
func (f *fixture) save(id, turn string, events *storev1.TurnEvents, texts ...string) error {
	p := &store.Progress{Tenant: tenant, ConversationID: id, TurnID: turn, Events: events}
	for _, text := range texts {
		p.Messages = append(p.Messages, assistant(text, "partial"))
	}
	return f.store.SaveProgress(f.t.Context(), p)
}

// interrupt ends an abandoned turn.
func (f *fixture) interrupt(p *store.Progress) {
	f.t.Helper()
	f.do(&store.Append{
		ConversationID: p.ConversationID, Messages: p.Messages, MustExist: true,
		End: &parleyv1.Turn{Id: p.TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED},
	})
}

// abandoned compares all pages of Abandoned with want, in the order of conversation ids, and
// returns the turns.
func (f *fixture) abandoned(want []store.Progress) []store.Progress {
	f.t.Helper()
	var got []store.Progress
	after := ""
	for range 1000 {
		turns, next, err := f.store.Abandoned(f.t.Context(), after)
		if err != nil {
			f.t.Fatalf("Abandoned: %v", err)
		}
		got = append(got, turns...)
		if after = next; after == "" {
			break
		}
	}
	if after != "" {
		f.t.Fatal("Abandoned has more than 1000 pages")
	}
	for i := range want {
		want[i].Tenant = tenant
	}
	slices.SortFunc(got, func(a, b store.Progress) int { return strings.Compare(a.ConversationID, b.ConversationID) })
	same(f.t, "abandoned turns", got, want)
	return got
}
