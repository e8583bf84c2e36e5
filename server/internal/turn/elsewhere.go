package turn

import (
	"context"
	"errors"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// waitForOther waits until a turn that another server runs has ended in the store. The turn of x is at the head of its
// queue, and can be removed from it in this time as any waiting turn. waitForOther returns the cause if it was removed.
func (x *execution) waitForOther(turnID string) error {
	x.releaseAgent() // A reload may close it.
	defer func() { _ = x.manager.stopWaitingForOther(x.entry) }()
	waiter := x.manager.waiters.Add(x.live.conversation)
	defer waiter.Remove()
	check := time.NewTicker(recoverInterval)
	defer check.Stop()
	keepAlive := time.NewTicker(keepAliveInterval)
	defer keepAlive.Stop()
	for {
		// The request may have started a turn elsewhere in the meantime, which readConversation reports.
		err, uid := x.readConversation(false), ""
		switch {
		case errors.Is(err, store.ErrUnavailable): // It still waits.
		case err != nil:
			return err
		case x.snapshot.Conversation.GetActiveTurnId() != turnID:
			x.snapshot = nil
			return x.manager.stopWaitingForOther(x.entry)
		default:
			uid = x.snapshot.Conversation.GetUid()
		}
		if err := x.manager.recordWait(x.entry, turnID, uid); err != nil {
			return err
		}
		select {
		case <-waiter.C:
		case <-check.C:
		case <-keepAlive.C:
			x.manager.reportPosition(x.entry)
		case <-x.live.ctx.Done():
			return x.manager.removeCancelled(x.entry)
		}
	}
}

// recordWait records that a turn waits at the head of its queue for a turn of another server, in the conversation with
// this uid, which is empty if it is unknown. It returns an error if the turn must not wait.
func (m *Manager) recordWait(e *queueEntry, turnID, uid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.removalCause != nil {
		return e.removalCause
	}
	q := e.queue
	if q.uid == "" {
		q.uid = uid
	}
	e.awaited = turnID
	var cause error
	switch {
	case q.deleted, uid != "" && q.uid != uid:
		cause = ErrConversationDeleted
	case m.stopping:
		cause = ErrShuttingDown
	case e.live.ctx.Err() != nil:
		cause = context.Cause(e.live.ctx)
	case e.readers == 0:
		cause = errDroppedFromQueue
	}
	if cause != nil {
		m.removeWaiting(e, cause)
		return cause
	}
	q.reportPositions()
	return nil
}

// stopWaitingForOther undoes recordWait. It returns the cause if the turn was removed from the queue in the meantime.
func (m *Manager) stopWaitingForOther(e *queueEntry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.awaited = ""
	return e.removalCause
}

// checkRunning cancels the turn if it has ended in the store, which another server then has done. It reports whether
// the store has answered.
func (x *execution) checkRunning() bool {
	at, uid := x.live.conversation, x.startResult.Conversation.GetUid()
	snapshot, err := x.manager.o.Store.Read(x.live.ctx, &store.Read{Tenant: at.tenant, ConversationID: at.id})
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && snapshot.Conversation.GetUid() != uid:
		// The store reports this too, unless changes were missed.
		x.manager.conversationDeleted(&store.Change{Tenant: at.tenant, ConversationID: at.id, UID: uid})
	case err != nil:
		return !errors.Is(err, store.ErrUnavailable)
	case snapshot.Conversation.GetActiveTurnId() != x.live.id:
		x.live.cancel(errEndedElsewhere)
	}
	return true
}

// endedElsewhere returns the error with which the streams of a turn end that was no longer running in the store when
// it was to be ended. Their readers continue from the store after errEndedElsewhere.
func (x *execution) endedElsewhere() error {
	found, err := x.manager.findStored(context.WithoutCancel(x.live.ctx), x.live.conversation, x.live.id)
	if errors.Is(err, store.ErrNotFound) || errors.As(err, new(*NotFoundError)) {
		x.log.Info("turn ended with its conversation")
		return ErrConversationDeleted
	}
	x.end.State, x.end.Reason = parleyv1.TurnState_TURN_STATE_INTERRUPTED, ""
	if err == nil && found.Turn.GetFinishTime() != nil {
		x.end.State, x.end.Reason = found.Turn.GetState(), found.Turn.GetError().GetReason()
	}
	x.log.Warn("turn was already ended in the store", "state", x.end.State.String(), "reason", x.end.Reason)
	return errEndedElsewhere
}
