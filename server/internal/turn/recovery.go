package turn

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
)

// Recover ends the turns that a crash left running and stores the saved parts of their answers.
// Call it before serving.
func (m *Manager) Recover(ctx context.Context) error {
	for after := ""; ; {
		abandoned, next, err := m.o.Store.Abandoned(ctx, after)
		if err != nil {
			return fmt.Errorf("find abandoned turns: %w", err)
		}
		for i := range abandoned {
			if _, err := m.endAbandoned(ctx, &abandoned[i]); err != nil {
				return err
			}
		}
		if after = next; after == "" {
			return nil
		}
	}
}

// endIfAbandoned ends a turn that no server runs and that this server could not end at its start,
// for example because the disk was full. It reports whether the turn has ended.
func (m *Manager) endIfAbandoned(ctx context.Context, at key, turnID string) (bool, error) {
	for after := ""; ; {
		abandoned, next, err := m.o.Store.Abandoned(ctx, after)
		if err != nil {
			return false, fmt.Errorf("find abandoned turns: %w", err)
		}
		for i := range abandoned {
			if progress := &abandoned[i]; progress.TurnID == turnID && progress.Tenant == at.tenant &&
				progress.ConversationID == at.id {
				return m.endAbandoned(ctx, progress)
			}
		}
		if after = next; after == "" {
			return false, nil
		}
	}
}

// endAbandoned ends a turn that a crash left running. It reports whether the turn has ended in the
// store.
func (m *Manager) endAbandoned(ctx context.Context, progress *store.Progress) (bool, error) {
	for _, message := range progress.Messages {
		if message.GetId() == "" {
			message.Id = uuid.NewString()
		}
	}
	_, err := m.o.Store.Append(ctx, &store.Append{
		Tenant: progress.Tenant, ConversationID: progress.ConversationID, Messages: progress.Messages,
		Events: replay.CompleteIndexes(progress.Events),
		End: &parleyv1.Turn{
			Id: progress.TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED,
			Error: interruptedByStop(),
		},
	})
	log := m.o.Log.With("tenant", progress.Tenant, "conversation_id", progress.ConversationID, "turn_id", progress.TurnID)
	switch {
	case err == nil:
		log.Warn("turn interrupted by a stop of the server", "saved_messages", len(progress.Messages))
		return true, nil
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrTurnEnded):
		return true, nil
	case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrNoSpace):
		// Continue: the other conversations can be served, and deleting some frees space.
		log.Error("turn could not be ended", "error", err)
		return false, nil
	}
	return false, fmt.Errorf("end turn %s of conversation %q: %w", progress.TurnID, progress.ConversationID, err)
}
