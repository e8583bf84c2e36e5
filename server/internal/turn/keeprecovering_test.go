package turn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// abandonedStore returns these turns as abandoned, whether they are or not.
type abandonedStore struct {
	store.Store
	turns    []store.Progress
	fails    map[string]error // by turn; "" for the list
	searches int
	onSearch func(n int) // called before each search, from 1
}

func (s *abandonedStore) Abandoned(context.Context, string) ([]store.Progress, string, error) {
	s.searches++
	s.onSearch(s.searches)
	return s.turns, "", s.fails[""]
}

func (s *abandonedStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.End != nil && s.fails[a.End.GetId()] != nil {
		return nil, s.fails[a.End.GetId()]
	}
	return s.Store.Append(ctx, a)
}

// TestKeepRecovering: every 2 s the abandoned turns are ended, but none that this server runs. A turn that cannot be
// ended keeps no other from being ended. Its error is logged once until it changes, and an outage is not logged.
func TestKeepRecovering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &abandonedStore{fails: map[string]error{"bad": errors.New("first fault"), "away": store.ErrUnavailable}}
		f, p := newControlled(t, func(o *Options) {
			s.Store = o.Store
			o.Store = s
		})
		own := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "own", Content: "q"})
		s.turns = append(s.turns, store.Progress{Tenant: tenant, ConversationID: "own", TurnID: own.turnID()})
		for _, id := range []string{"bad", "away", "good"} {
			if _, err := f.store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: id, Begin: &parleyv1.Turn{Id: id},
				Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "q"}},
			}); err != nil {
				t.Fatal(err)
			}
			s.turns = append(s.turns, store.Progress{Tenant: tenant, ConversationID: id, TurnID: id})
		}
		state := func(id string) string {
			turn, err := f.Get(t.Context(), tenant, id, map[string]string{"own": own.turnID()}[id]+strings.TrimPrefix(id, "own"))
			if err != nil {
				t.Error(err)
			}
			return stateName(turn.GetState())
		}
		wantLogged := func(text string, want int) {
			t.Helper()
			if got := strings.Count(f.logged.String(), text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, f.logged)
			}
		}
		wantStates := func(want map[string]string) {
			t.Helper()
			for id, want := range want {
				if got := state(id); got != want {
					t.Errorf("state of turn %s = %s, want %s", id, got, want)
				}
			}
		}
		const last = 9
		s.onSearch = func(n int) {
			switch n {
			case 4:
				wantStates(map[string]string{"own": "RUNNING", "bad": "RUNNING", "away": "RUNNING", "good": "INTERRUPTED"})
				wantLogged("first fault", 1)
				wantLogged("unavailable", 0)
				s.fails["bad"] = errors.New("second fault")
			case 6:
				wantLogged("second fault", 1)
				s.fails[""] = fmt.Errorf("search: %w", store.ErrUnavailable)
			case 7:
				wantLogged("search for abandoned turns failed", 0)
				s.fails[""] = errors.New("third fault")
			case last:
				wantLogged("third fault", 1)
				clear(s.fails)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), last*recoverInterval+time.Second)
		defer stop()
		f.KeepRecovering(ctx)
		if s.searches != last {
			t.Errorf("%d searches in %d s, want %d", s.searches, 2*last+1, last)
		}
		wantStates(map[string]string{"own": "RUNNING", "bad": "INTERRUPTED", "away": "INTERRUPTED"})
		s.onSearch = func(int) {}
		if next := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "own", Content: "q"}); next.err == nil {
			t.Error("a start ended the turn that this server runs")
		}
		p.runs[0].complete()
		if stateName(own.finished().GetState()) != "COMPLETED" {
			t.Errorf("own turn = %q, want COMPLETED", own.received())
		}
	})
}
