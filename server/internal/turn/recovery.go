package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
)

// recoverInterval is the time between two searches for abandoned turns, and between two reads of a turn of another
// server whose end is awaited.
const recoverInterval = 2 * time.Second

// Recover ends the turns that a crash left running and stores the saved parts of their answers.
// Call it before serving.
func (m *Manager) Recover(ctx context.Context) error {
	return m.endAllAbandoned(ctx, func(p *store.Progress, err error) error {
		if !mayRemainRunning(err) {
			return err
		}
		m.logNotEnded(p, err)
		return nil
	})
}

// KeepRecovering ends abandoned turns every 2 s until ctx ends, those of other servers that have crashed among them.
// Turns that this server runs are not ended, even if the store counts them as abandoned. An error keeps no other turn
// from being ended. It is logged once until it changes, unless the store is unavailable.
func (m *Manager) KeepRecovering(ctx context.Context) {
	ticker := time.NewTicker(recoverInterval)
	defer ticker.Stop()
	known := make(map[string]string) // texts of errors by turn, "" for the search
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		found := make(map[string]string)
		isNew := func(id string, err error) bool {
			found[id] = err.Error()
			return ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrClosed) &&
				known[id] != found[id]
		}
		err := m.endAllAbandoned(ctx, func(p *store.Progress, err error) error {
			if isNew(p.TurnID, err) {
				m.logNotEnded(p, err)
			}
			return nil
		})
		if err != nil && isNew("", err) {
			m.o.Log.Error("search for abandoned turns failed", "error", err)
		}
		m.endAllLeft(ctx)
		known = found
	}
}

// endAllAbandoned ends the abandoned turns that this server does not run. It calls failed for each that it could not
// end, and returns its error.
func (m *Manager) endAllAbandoned(ctx context.Context, failed func(p *store.Progress, err error) error) error {
	for after := ""; ; {
		abandoned, next, err := m.o.Store.Abandoned(ctx, after)
		if err != nil {
			return fmt.Errorf("find abandoned turns: %w", err)
		}
		for i := range abandoned {
			p := &abandoned[i]
			if m.runs(p.TurnID) {
				continue // This server was paused for longer than its lease.
			}
			if err := m.endAbandoned(ctx, p); err != nil {
				if err := failed(p, err); err != nil {
					return err
				}
			}
		}
		if after = next; after == "" {
			return nil
		}
	}
}

// endIfAbandoned ends a turn that no server runs. It reports whether the turn has ended. Others end such turns too,
// but not at once, and this server may have failed to do so at its start, for example because the disk was full.
func (m *Manager) endIfAbandoned(ctx context.Context, at key, turnID string) (bool, error) {
	if m.runs(turnID) {
		return false, nil
	}
	if ended, err := m.endIfLeft(ctx, turnID); ended || err != nil {
		return ended, err
	}
	switch owner, err := m.o.Owner(ctx, at.tenant, at.id); {
	case err != nil:
		return false, fmt.Errorf("find the server of the turn: %w", err)
	case owner.Server != store.Server{}:
		return owner.TurnID != turnID, nil // Another turn: the one in question has ended.
	}
	for after := ""; ; {
		abandoned, next, err := m.o.Store.Abandoned(ctx, after)
		if err != nil {
			return false, fmt.Errorf("find abandoned turns: %w", err)
		}
		for i := range abandoned {
			p := &abandoned[i]
			if p.TurnID != turnID || p.Tenant != at.tenant || p.ConversationID != at.id {
				continue
			}
			err := m.endAbandoned(ctx, p)
			if mayRemainRunning(err) {
				m.logNotEnded(p, err)
				return false, nil
			}
			return err == nil, err
		}
		if after = next; after == "" {
			return false, nil
		}
	}
}

// endAbandoned ends a turn that a crash left running. It returns nil if the turn has ended in the store.
func (m *Manager) endAbandoned(ctx context.Context, progress *store.Progress) error {
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
	switch {
	case err == nil:
		m.o.Log.Warn("turn interrupted by a stop of the server", "tenant", progress.Tenant,
			"conversation_id", progress.ConversationID, "turn_id", progress.TurnID,
			"saved_messages", len(progress.Messages))
		// The turn has ended for all, even if the call that has ended it has no time left.
		m.sendFinished(context.WithoutCancel(ctx), key{progress.Tenant, progress.ConversationID}, progress.TurnID)
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrTurnEnded):
	default:
		return fmt.Errorf("end turn %s of conversation %q: %w", progress.TurnID, progress.ConversationID, err)
	}
	m.waiters.Wake(key{progress.Tenant, progress.ConversationID})
	return nil
}

// sendFinished sends the finished event of a turn to the sink. The turn has ended in the store, and this server did not
// run it.
func (m *Manager) sendFinished(ctx context.Context, at key, turnID string) {
	if m.o.EventSink == nil || !m.o.EventSink.HasSubscribers() {
		return
	}
	uid := ""
	events, err := m.restOfStored(ctx, at, &uid, turnID, Received{})
	if err != nil || len(events) == 0 { // For example, the conversation was deleted in the meantime.
		m.o.Log.Debug("finished event not sent", "tenant", at.tenant, "conversation_id", at.id, "turn_id", turnID,
			"error", err)
		return
	}
	m.o.EventSink.TurnEvent(at.tenant, at.id, events[len(events)-1])
}

// mayRemainRunning reports whether the server can serve although an abandoned turn could not be ended for this reason:
// the other conversations can be served, and deleting some frees space.
func mayRemainRunning(err error) bool {
	return errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrNoSpace)
}

func (m *Manager) logNotEnded(p *store.Progress, err error) {
	m.o.Log.Error("turn could not be ended", "tenant", p.Tenant, "conversation_id", p.ConversationID,
		"turn_id", p.TurnID, "error", err)
}

// runs reports whether this server runs a turn, or is about to start it.
func (m *Manager) runs(turnID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.turns[turnID]
	return e != nil && !e.ended
}
