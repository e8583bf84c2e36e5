package rpc

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

// findCountingStore counts the searches for turns.
type findCountingStore struct {
	store.Store
	finds atomic.Int32
}

func (s *findCountingStore) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	s.finds.Add(1)
	return s.Store.FindTurn(ctx, f)
}

// TestForgedTokenOfTurns: a page token with more ids than the queue of a conversation has is refused before the store
// searches for one of them.
func TestForgedTokenOfTurns(t *testing.T) {
	counting := new(findCountingStore)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			counting.Store = inner
			return counting
		}
	})
	f.ask(t, "question")
	token := func(pending int) string {
		return store.SealToken([]byte(strings.Repeat("\nnone", pending)), "turns", "default", "c")
	}
	_, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c", PageToken: token(turn.MaxPending)})
	if n := counting.finds.Load(); err != nil || n != turn.MaxPending {
		t.Errorf("ListTurns with %d ids in the token: %v, %d searches, want as many", turn.MaxPending, err, n)
	}
	counting.finds.Store(0)
	for _, pending := range []int{turn.MaxPending + 1, 100_000} {
		_, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c", PageToken: token(pending)})
		wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		if n := counting.finds.Load(); n != 0 {
			t.Errorf("ListTurns with %d ids in the token made %d searches, want none", pending, n)
		}
	}
}
