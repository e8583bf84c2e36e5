package turn

import (
	"context"
	"errors"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Get returns a turn by its id. If conversationID is not empty, the turn must belong to this conversation. Errors:
// NotFoundError if there is no such turn, and store.ErrNotFound if the conversation that conversationID names does not
// exist.
func (m *Manager) Get(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error) {
	at := key{tenant, conversationID}
	turn, err := m.find(ctx, at, turnID)
	if errors.As(err, new(*NotFoundError)) {
		if t := m.cancelledBeforeStart(at, turnID); t != nil {
			return t.await(ctx) // The turn is about to end.
		}
	}
	return turn, err
}

// find returns a queued or stored turn. Its errors are those of Get.
func (m *Manager) find(ctx context.Context, at key, turnID string) (*parleyv1.Turn, error) {
	// Check the queue before the store: a turn that starts in between is then in both, not in neither.
	queued := m.queuedTurn(at, turnID)
	found, err := m.findStored(ctx, at, turnID)
	switch {
	case err == nil:
		return found.Turn, nil
	case queued != nil && errors.As(err, new(*NotFoundError)):
		return queued, nil
	default:
		return nil, err
	}
}

// findStored returns a stored turn. Its errors are those of Get.
func (m *Manager) findStored(ctx context.Context, at key, turnID string) (*store.FoundTurn, error) {
	found, err := m.o.Store.FindTurn(ctx, &store.FindTurn{Tenant: at.tenant, ConversationID: at.id, TurnID: turnID})
	if errors.Is(err, store.ErrTurnNotFound) {
		err = &NotFoundError{TurnID: turnID}
	}
	return found, err
}

// queuedTurn returns a turn that has not started and may still start, nil if there is none.
func (m *Manager) queuedTurn(at key, turnID string) *parleyv1.Turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.turns[turnID]; e != nil && e.live.conversation.isIn(at) && e.isQueued() {
		return e.live.queuedTurn()
	}
	return nil
}

// cancelledBeforeStart returns a turn that was cancelled while it waited, nil if there is none.
func (m *Manager) cancelledBeforeStart(at key, turnID string) *liveTurn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.turns[turnID]; e != nil && e.live.conversation.isIn(at) && e.ended && e.uid == "" {
		return e.live
	}
	return nil
}

// isIn reports whether a conversation is the one that a request names. A request without an id names all conversations
// of its tenant.
func (k key) isIn(request key) bool {
	return k.tenant == request.tenant && (request.id == "" || k.id == request.id)
}

// Cancel cancels a running or queued turn and returns it as it ended. The turn may have another
// state than CANCELLED if its answer was already complete. Cancel does not change a turn that has
// ended. Errors: those of Get, ElsewhereError if another server runs the turn, and store.BusyError if this server could
// not store its end.
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
		return nil, m.runningError(turnID)
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
