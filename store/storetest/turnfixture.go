package storetest

import (
	"errors"
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// turnID returns the id of a turn, a UUID of version 7. The ids rise with n.
func turnID(n int) string {
	return fmt.Sprintf("0198c0de-%04x-7000-8000-00000000%04x", n>>16, n&0xffff)
}

// runTurn begins and ends a turn.
func (f *fixture) runTurn(conversation, id string) {
	f.t.Helper()
	f.beginTurn(conversation, id)
	f.endTurn(conversation, id)
}

// findTurn returns a turn, which must exist. If conversation is empty, it finds the turn by its id alone.
func (f *fixture) findTurn(conversation, id string) *store.FoundTurn {
	f.t.Helper()
	found, err := f.store.FindTurn(f.t.Context(), &store.FindTurn{
		Tenant: tenant, ConversationID: conversation, TurnID: id,
	})
	if err != nil {
		f.t.Fatalf("FindTurn(%q, %s): %v", conversation, id, err)
	}
	return found
}

// wantNoTurn checks the error of FindTurn. If conversation is empty, the call has only the id of the turn.
func (f *fixture) wantNoTurn(conversation, id string, want error) {
	f.t.Helper()
	found, err := f.store.FindTurn(f.t.Context(), &store.FindTurn{
		Tenant: tenant, ConversationID: conversation, TurnID: id,
	})
	if !errors.Is(err, want) {
		f.t.Errorf("FindTurn(%q, %s) = %v, %v, want %v", conversation, id, found, err, want)
	}
}

// turnPage returns a page of a list of turns.
func (f *fixture) turnPage(l store.ListTurns) *store.TurnPage {
	f.t.Helper()
	l.Tenant = orTenant(l.Tenant)
	page, err := f.store.ListTurns(f.t.Context(), &l)
	if err != nil {
		f.t.Fatalf("ListTurns(%+v): %v", l, err)
	}
	if len(page.Turns) > l.Limit {
		f.t.Errorf("ListTurns(%+v) = %d turns, want at most %d", l, len(page.Turns), l.Limit)
	}
	return page
}

// turnList returns the ids of a list of turns, from all pages. It calls between after each page except the last.
func (f *fixture) turnList(l store.ListTurns, between func()) (ids []string) {
	f.t.Helper()
	for range 20_000 {
		page := f.turnPage(l)
		for _, turn := range page.Turns {
			ids = append(ids, turn.GetId())
		}
		if l.Before = page.Next; l.Before == "" {
			return ids
		}
		between()
	}
	f.t.Fatalf("ListTurns(%+v) has more than 20000 pages", l)
	return nil
}

// wantTurns checks that a list has these turns, for several sizes of its pages. rising has the oldest turn first.
func (f *fixture) wantTurns(l store.ListTurns, rising ...string) {
	f.t.Helper()
	f.wantTurnPages(l, []int{1, 3, 1000}, rising...)
}

// wantTurnPages is wantTurns for pages of these sizes.
func (f *fixture) wantTurnPages(l store.ListTurns, sizes []int, rising ...string) {
	f.t.Helper()
	slices.Reverse(rising)
	for _, l.Limit = range sizes {
		if l.Limit == 1 && len(rising) > 100 {
			continue
		}
		if got := f.turnList(l, func() {}); !slices.Equal(got, rising) {
			f.t.Errorf("ListTurns(%+v) = %d turns %v, want %d %v", l, len(got), got, len(rising), rising)
		}
	}
	slices.Reverse(rising)
}

// turnIDs returns turnID(from) to turnID(to-1).
func turnIDs(from, to int) (ids []string) {
	for n := from; n < to; n++ {
		ids = append(ids, turnID(n))
	}
	return ids
}

// withMaxTurns creates a conversation with max_turns n.
func (f *fixture) withMaxTurns(id string, n int32) {
	f.t.Helper()
	f.do(&store.Create{Conversation: &parleyv1.Conversation{
		Id: id, Retention: &parleyv1.Retention{MaxTurns: n, MaxMessages: 2},
	}})
}
