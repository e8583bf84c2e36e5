package turn

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
)

// leftTurn is a turn that this server does not run, and that may be running in the store because this server began it.
// The store does not count it as abandoned while the server lives.
type leftTurn struct {
	conversation key
	// events of the turn, if the store did not answer at its start: the turn may have begun or not, and no agent was
	// called. Nil if the answer could not be stored: the turn then runs until the next start, which stores what was
	// saved of it.
	events *storev1.TurnEvents
}

// leave records a turn that may be running in the store although this server does not run it any more.
func (m *Manager) leave(turnID string, left leftTurn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left[turnID] = left
}

// findLeft returns a turn that leave has recorded.
func (m *Manager) findLeft(turnID string) (left leftTurn, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left, ok = m.left[turnID]
	return left, ok
}

// runningError returns the error about a turn that runs in the store and is not abandoned.
func (m *Manager) runningError(turnID string) error {
	if _, left := m.findLeft(turnID); left || m.runs(turnID) {
		return &store.BusyError{TurnID: turnID}
	}
	return &ElsewhereError{TurnID: turnID}
}

// endIfLeft ends a turn that may have begun when the store did not answer. It reports whether there was such a turn and
// it does not run any more.
func (m *Manager) endIfLeft(ctx context.Context, turnID string) (bool, error) {
	left, ok := m.findLeft(turnID)
	if !ok || left.events == nil {
		return false, nil
	}
	_, err := m.o.Store.Append(ctx, &store.Append{
		Tenant: left.conversation.tenant, ConversationID: left.conversation.id,
		Events: replay.CompleteIndexes(proto.CloneOf(left.events)),
		End: &parleyv1.Turn{
			Id: turnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED, Error: &parleyv1.TurnError{
				Code: codeAborted, Reason: "INTERRUPTED", Message: "the store did not answer when the turn started",
				Retryable: true,
			},
		},
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrTurnEnded) {
		return false, fmt.Errorf("end turn %s of conversation %q: %w", turnID, left.conversation.id, err)
	}
	m.mu.Lock()
	delete(m.left, turnID)
	m.mu.Unlock()
	m.waiters.Wake(left.conversation)
	return true, nil
}

// endAllLeft ends all turns that may have begun when the store did not answer. It stops at the first error: the store
// does not answer yet.
func (m *Manager) endAllLeft(ctx context.Context) {
	m.mu.Lock()
	ids := make([]string, 0, len(m.left))
	for id := range m.left {
		ids = append(ids, id)
	}
	m.mu.Unlock()
	for _, id := range ids {
		if _, err := m.endIfLeft(ctx, id); err != nil {
			return
		}
	}
}
