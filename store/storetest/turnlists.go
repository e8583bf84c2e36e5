package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law20Turns tests that turns are found and listed while they are kept.
func (s Subject) law20Turns(t *testing.T) {
	t.Run("found by the id alone", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range 3 {
			f.runTurn(fmt.Sprint("c", i), turnID(i))
		}
		started := f.beginTurn("c1", turnID(3))
		for _, conversation := range []string{"", "c1"} {
			same(t, "running turn", f.findTurn(conversation, turnID(3)).Turn, started.Turn)
		}
		ended := f.endTurn("c1", turnID(3))
		same(t, "ended turn", f.findTurn("", turnID(3)).Turn, ended.Turn)
		if got := f.findTurn("", turnID(2)).Turn.GetConversationId(); got != "c2" {
			t.Errorf("conversation of turn 2 = %q, want c2", got)
		}
		f.wantNoTurn("", turnID(9), store.ErrTurnNotFound)
		f.wantNoTurn("c0", turnID(2), store.ErrTurnNotFound)
		f.wantNoTurn("missing", turnID(2), store.ErrNotFound)
	})
	t.Run("not those of other tenants", func(t *testing.T) {
		f := s.open(t, nil)
		f.runTurn("a", turnID(0))
		other := &store.FindTurn{Tenant: "other", TurnID: turnID(0)}
		if found, err := f.store.FindTurn(t.Context(), other); err == nil {
			t.Errorf("FindTurn of another tenant = %v, want an error", found)
		}
		f.wantTurns(store.ListTurns{Tenant: "other"})
		f.wantTurns(store.ListTurns{}, turnID(0))
	})
	t.Run("other ids only with their conversation", func(t *testing.T) {
		f := s.open(t, nil)
		ids := []string{
			"turn", "0198c0de-0000-4000-8000-000000000001", "0198C0DE-0000-7000-8000-000000000001",
			"0198c0de-0000-7000-0000-000000000001", "0198c0de00007000800000000000000001", "",
		}
		for _, id := range ids[:5] {
			f.runTurn("a", id)
			f.findTurn("a", id)
			f.wantNoTurn("", id, store.ErrTurnNotFound)
		}
		f.wantNoTurn("a", ids[5], store.ErrTurnNotFound)
		f.wantNoTurn("", ids[5], store.ErrTurnNotFound)
		f.wantTurns(store.ListTurns{})
		f.wantTurns(store.ListTurns{ConversationID: "a"}, ids[:5]...)
	})
	t.Run("in order", func(t *testing.T) {
		f := s.open(t, nil)
		// In conversation "a", turns start in another order than that of their ids.
		for _, n := range []int{4, 1, 3} {
			f.runTurn("a", turnID(n))
		}
		f.runTurn("b", turnID(2))
		f.runTurn("b", turnID(0))
		f.wantTurns(store.ListTurns{}, turnIDs(0, 5)...)
		f.wantTurns(store.ListTurns{ConversationID: "a"}, turnID(4), turnID(1), turnID(3))
		f.wantTurns(store.ListTurns{Before: turnID(3)}, turnIDs(0, 3)...)
		f.wantTurns(store.ListTurns{Before: turnID(9)}, turnIDs(0, 5)...)
		f.wantTurns(store.ListTurns{ConversationID: "a", Before: turnID(1)}, turnID(4))
		f.wantTurns(store.ListTurns{ConversationID: "a", Before: turnID(2)})
	})
	t.Run("by state", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range 8 {
			id := fmt.Sprint("c", i%4)
			f.beginTurn(id, turnID(i))
			if i < 4 {
				f.endTurn(id, turnID(i))
			}
		}
		f.do(&store.Append{ConversationID: "c1", End: &parleyv1.Turn{
			Id: turnID(5), State: parleyv1.TurnState_TURN_STATE_FAILED,
		}})
		running, failed := parleyv1.TurnState_TURN_STATE_RUNNING, parleyv1.TurnState_TURN_STATE_FAILED
		completed := parleyv1.TurnState_TURN_STATE_COMPLETED
		f.wantTurns(store.ListTurns{States: []parleyv1.TurnState{running}}, turnID(4), turnID(6), turnID(7))
		f.wantTurns(store.ListTurns{States: []parleyv1.TurnState{running}, Before: turnID(7)}, turnID(4), turnID(6))
		f.wantTurns(store.ListTurns{States: []parleyv1.TurnState{failed}}, turnID(5))
		f.wantTurns(store.ListTurns{States: []parleyv1.TurnState{failed, completed}}, append(turnIDs(0, 4), turnID(5))...)
		f.wantTurns(store.ListTurns{ConversationID: "c1", States: []parleyv1.TurnState{completed}}, turnID(1))
		f.wantTurns(store.ListTurns{ConversationID: "c1", States: []parleyv1.TurnState{running}})
		f.do(&store.Delete{ConversationID: "c2"})
		f.wantTurns(store.ListTurns{States: []parleyv1.TurnState{running}}, turnID(4), turnID(7))
		f.reopen(nil)
		if s.Durable { // The store does not end the running turns when it is reopened. Its caller does.
			f.wantTurns(store.ListTurns{States: []parleyv1.TurnState{running}}, turnID(4), turnID(7))
			f.wantTurns(store.ListTurns{}, turnID(0), turnID(1), turnID(3), turnID(4), turnID(5), turnID(7))
		}
	})
	t.Run("ends with the conversation", s.turnsEnd)
	t.Run("pages while turns change", s.changingTurns)
	t.Run("while others begin and end", s.concurrentTurns)
}

// turnsEnd tests that turns end with their conversation, however it ends.
func (s Subject) turnsEnd(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 6 })
	for i, id := range []string{"evicted", "deleted", "expired", "overwritten", "ephemeral", "purged"} {
		f.clock.Advance(1)
		f.do(&store.Create{Conversation: &parleyv1.Conversation{
			Id: id, Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Hour)},
		}})
		f.runTurn(id, turnID(2*i))
		f.runTurn(id, turnID(2*i+1))
	}
	f.wantTurns(store.ListTurns{}, turnIDs(0, 12)...)
	ended := func(n int, id string) {
		t.Helper()
		for _, n := range []int{n, n + 1} {
			f.wantNoTurn("", turnID(n), store.ErrTurnNotFound)
			if slices.Contains(f.turnList(store.ListTurns{Limit: 5}, func() {}), turnID(n)) {
				t.Errorf("ListTurns returns turn %d of the %s conversation", n, id)
			}
		}
	}
	f.runTurn("new", turnID(20))
	f.settle()
	ended(0, "evicted")
	f.do(&store.Delete{ConversationID: "deleted"})
	ended(2, "deleted")
	f.runTurn("deleted", turnID(21)) // A new conversation with the same id.
	ended(2, "deleted")
	f.wantTurns(store.ListTurns{ConversationID: "deleted"}, turnID(21))
	f.do(&store.Import{Conversation: f.header("overwritten"), Overwrite: true})
	ended(6, "overwritten")
	f.wantTurns(store.ListTurns{ConversationID: "overwritten"})
	h := &store.Hold{Tenant: tenant, ConversationIDs: []string{"ephemeral"}}
	if err := f.store.Hold(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Release(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	ended(8, "ephemeral")
	f.clock.Advance(30 * time.Minute)
	for _, id := range []string{"new", "deleted", "expired"} {
		f.append(id, user("later"))
	}
	if _, err := f.store.Purge(t.Context(), &store.Purge{Tenant: tenant, InactiveFor: 20 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	ended(10, "purged")
	f.wantTurns(store.ListTurns{}, turnID(4), turnID(5), turnID(20), turnID(21))
	f.clock.Advance(2 * time.Hour)
	ended(4, "expired")
	f.wantNoTurn("expired", turnID(4), store.ErrNotFound)
	f.sweep()
	f.wantTurns(store.ListTurns{})
}

// changingTurns tests that a list returns each turn once while others begin, end and are removed.
func (s Subject) changingTurns(t *testing.T) {
	for _, l := range []store.ListTurns{{Limit: 7}, {Limit: 1}, {ConversationID: "stays", Limit: 7}} {
		f := s.open(t, nil)
		f.withMaxTurns("stays", 200)
		var stays []string
		n := 0
		for ; n < 150; n += 3 {
			f.runTurn("stays", turnID(n))
			f.runTurn(fmt.Sprint("goes ", n%20), turnID(n+1))
			stays = append(stays, turnID(n))
		}
		calls := 0
		got := f.turnList(l, func() {
			f.runTurn("stays", turnID(n))
			f.runTurn(fmt.Sprint("goes ", calls%30), turnID(n+1))
			if id := fmt.Sprint("goes ", calls%20); calls%3 == 0 {
				if _, err := f.try(&store.Delete{ConversationID: id}); err != nil && calls < 20 {
					t.Log(err)
				}
			}
			n, calls = n+3, calls+1
		})
		if !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) {
			t.Errorf("ListTurns(%+v) = %v, want falling ids", l, got)
		}
		for _, id := range stays {
			count := 0
			for _, g := range got {
				if g == id {
					count++
				}
			}
			if count != 1 {
				t.Errorf("ListTurns(%+v) returned turn %s, which was kept all the time, %d times, want once", l, id, count)
			}
		}
	}
}
