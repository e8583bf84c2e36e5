package storetest_test

import (
	"context"
	"errors"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// faultyTurnStores returns stores that violate law 20.
func faultyTurnStores() map[string]faultyStore {
	wrapped := func(wrap func(store.Store) store.Store, test string) faultyStore {
		return faultyStore{
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store { return wrap(s) }), test: test,
		}
	}
	return map[string]faultyStore{
		"a turn of a deleted conversation is found": wrapped(func(s store.Store) store.Store {
			return findsDeleted{s, map[string]*store.FoundTurn{}}
		}, "Law20Turns/ends_with_the_conversation"),
		"a page of turns skips one": wrapped(func(s store.Store) store.Store {
			return skipsTurn{s}
		}, "Law20Turns/pages_while_turns_change"),
		"a turn that has ended is listed as running": wrapped(func(s store.Store) store.Store {
			return listsEnded{s}
		}, "Law20Turns/by_state"),
		"a conversation keeps too few turns": wrapped(func(s store.Store) store.Store {
			return ignoresMaxTurns{s}
		}, "Law20MaxTurns/33"),
		"the events of old turns are lost": wrapped(func(s store.Store) store.Store {
			return losesEvents{s}
		}, "Law20MaxTurns/100"),
	}
}

// findsDeleted still finds the turns of conversations that have ended.
type findsDeleted struct {
	store.Store
	found map[string]*store.FoundTurn
}

func (s findsDeleted) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	result, err := s.Store.Append(ctx, a)
	if err == nil && result.Turn != nil {
		s.found[a.Tenant+a.ConversationID+result.Turn.GetId()] = &store.FoundTurn{Turn: result.Turn}
		s.found[a.Tenant+result.Turn.GetId()] = &store.FoundTurn{Turn: result.Turn}
	}
	return result, err
}

func (s findsDeleted) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	found, err := s.Store.FindTurn(ctx, f)
	if known := s.found[f.Tenant+f.ConversationID+f.TurnID]; known != nil && errors.Is(err, store.ErrTurnNotFound) {
		return known, nil
	}
	return found, err
}

// skipsTurn leaves out the first turn of each page except the first page.
type skipsTurn struct{ store.Store }

func (s skipsTurn) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	page, err := s.Store.ListTurns(ctx, l)
	if err == nil && l.Before != "" && len(page.Turns) > 1 {
		page.Turns = page.Turns[1:]
	}
	return page, err
}

// listsEnded ignores the states of a list of running turns.
type listsEnded struct{ store.Store }

func (s listsEnded) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	if len(l.States) == 1 && l.States[0] == parleyv1.TurnState_TURN_STATE_RUNNING {
		all := *l
		all.States = nil
		l = &all
	}
	return s.Store.ListTurns(ctx, l)
}

// ignoresMaxTurns creates conversations without max_turns.
type ignoresMaxTurns struct{ store.Store }

func (s ignoresMaxTurns) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	if r := c.Conversation.GetRetention(); r != nil {
		r.MaxTurns = 0
	}
	return s.Store.Create(ctx, c)
}

// losesEvents returns the events only of the newest turns.
type losesEvents struct{ store.Store }

func (s losesEvents) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	found, err := s.Store.FindTurn(ctx, f)
	if err != nil {
		return nil, err
	}
	snapshot, err := s.Read(ctx, &store.Read{
		Tenant: f.Tenant, ConversationID: found.Turn.GetConversationId(), Turns: true,
	})
	if err != nil {
		return nil, err
	}
	for _, e := range snapshot.Events {
		if e.GetTurnId() == f.TurnID {
			return found, nil
		}
	}
	return &store.FoundTurn{Turn: found.Turn}, nil
}
