package turn

import (
	"context"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Get returns a turn of a conversation. Errors: store.ErrNotFound if the conversation does not
// exist, NotFoundError if it has no such turn.
func (m *Manager) Get(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error) {
	turns, err := m.allTurns(ctx, key{tenant, conversationID})
	if err != nil {
		return nil, err
	}
	if turn := findTurn(turns, turnID); turn != nil {
		return turn, nil
	}
	if t := m.cancelledBeforeStart(key{tenant, conversationID}, turnID); t != nil {
		return t.await(ctx) // The turn is about to end.
	}
	return nil, &NotFoundError{TurnID: turnID}
}

// List returns the newest turns of a conversation, newest first, at most 32. Queued turns come
// first, starting with the last one in the queue.
func (m *Manager) List(ctx context.Context, tenant, conversationID string) ([]*parleyv1.Turn, error) {
	turns, err := m.allTurns(ctx, key{tenant, conversationID})
	if err != nil {
		return nil, err
	}
	slices.Reverse(turns)
	return turns[:min(len(turns), maxListedTurns)], nil
}

// allTurns returns the stored and the queued turns of a conversation, oldest first.
func (m *Manager) allTurns(ctx context.Context, at key) ([]*parleyv1.Turn, error) {
	// Read the queue before the store: a turn that starts in between is then in both, not in
	// neither.
	waiting := m.queuedTurns(at)
	snapshot, err := m.o.Store.Read(ctx, &store.Read{Tenant: at.tenant, ConversationID: at.id, Turns: true})
	if err != nil {
		return nil, err
	}
	turns := snapshot.Turns
	for _, turn := range waiting {
		if findTurn(snapshot.Turns, turn.GetId()) == nil {
			turns = append(turns, turn)
		}
	}
	return turns, nil
}

// queuedTurns returns the turns of a conversation that have not started.
func (m *Manager) queuedTurns(at key) []*parleyv1.Turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	var turns []*parleyv1.Turn
	if q := m.queues[at]; q != nil {
		for _, e := range q.turns() {
			if !e.ended && e.uid == "" {
				turns = append(turns, e.live.queuedTurn())
			}
		}
	}
	return turns
}

// cancelledBeforeStart returns a turn that was cancelled while it waited, nil if there is none.
func (m *Manager) cancelledBeforeStart(at key, turnID string) *liveTurn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.turns[turnID]; e != nil && e.live.conversation == at && e.ended && e.uid == "" {
		return e.live
	}
	return nil
}

// Cancel cancels a running or queued turn and returns it as it ended. The turn may have another
// state than CANCELLED if its answer was already complete. Cancel does not change a turn that has
// ended. Errors: those of Get, and store.BusyError if another server runs the turn.
func (m *Manager) Cancel(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error) {
	if t := m.cancelTurn(key{tenant, conversationID}, turnID); t != nil {
		if turn, err := t.await(ctx); turn != nil || err != nil {
			return turn, err
		}
	}
	turn, err := m.Get(ctx, tenant, conversationID, turnID)
	if err != nil || turn.GetFinishTime() != nil {
		return turn, err
	}
	ended, err := m.endIfAbandoned(ctx, key{tenant, conversationID}, turnID)
	switch {
	case err != nil:
		return nil, err
	case !ended:
		return nil, &store.BusyError{TurnID: turnID}
	}
	return m.Get(ctx, tenant, conversationID, turnID)
}

// cancelTurn cancels a turn in memory and returns it, nil if there is none that has not ended.
func (m *Manager) cancelTurn(at key, turnID string) *liveTurn {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.turns[turnID]
	if e == nil || e.live.conversation != at || e.ended {
		return nil
	}
	if !m.removeWaiting(e, errCancelled) {
		e.live.cancel(errCancelled)
	}
	return e.live
}
