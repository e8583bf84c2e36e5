package turn

import (
	"context"
	"errors"
	"iter"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
)

// Received is what a reader has received of a turn, from which FollowStored continues. The zero value is nothing. Call
// Add with each event.
type Received = replay.Received

// ReceivedThrough returns what a reader has received that resumes after an index.
func ReceivedThrough(index int32) Received { return replay.ReceivedThrough(index) }

// FollowStored continues the stream of a reader of a turn that another server runs or ran, from the store. It waits
// until the turn has ended there, and then yields what the reader has not received, and the finished event. If the
// server that runs the turn has crashed, another server ends the turn when its lease is over. No text is repeated and
// none that is stored is left out. What a crash has lost cannot be yielded.
//
// While it waits it yields an empty progress event every 15 s. The event repeats the index of the last event that the
// reader has, 0 if there is none, because the store may have events with each higher index. A reader that resumes after
// it misses nothing.
//
// The index of the finished event is that of the store. If the reader already has a higher one, it is the next after
// that. A started event is marked as replayed. If the store is unavailable, FollowStored waits. It ends with
// ErrConversationDeleted if the conversation does not exist any more, NotFoundError if the turn is not stored,
// EventsGoneError if the reader resumed within a text and has received none of it since, ErrShuttingDown, another error
// of the store, or the cause of ctx.
func (m *Manager) FollowStored(
	ctx context.Context, tenant, conversationID, turnID string, received Received,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		err := m.followStored(ctx, key{tenant, conversationID}, "", turnID, received, yield)
		if err != nil && !errors.Is(err, errReaderStopped) {
			yield(nil, err)
		}
	}
}

// followStored is FollowStored for a turn in the conversation with this uid, which is empty if it is unknown.
func (m *Manager) followStored(
	ctx context.Context, at key, uid, turnID string, received Received, yield yieldFunc,
) error {
	waiter := m.waiters.Add(at)
	defer waiter.Remove()
	check := time.NewTicker(recoverInterval)
	defer check.Stop()
	keepAlive := time.NewTicker(keepAliveInterval)
	defer keepAlive.Stop()
	for {
		events, err := m.restOfStored(ctx, at, &uid, turnID, received)
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		for _, event := range events {
			if !yield(event, nil) {
				return errReaderStopped
			}
		}
		if len(events) > 0 {
			return nil
		}
		select {
		case <-waiter.C:
		case <-check.C:
		case <-keepAlive.C:
			event := &parleyv1.TurnEvent{
				TurnId: turnID, Index: received.Index(),
				Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}},
			}
			if !yield(event, nil) {
				return errReaderStopped
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.ctx.Done():
			return ErrShuttingDown
		}
	}
}

// restOfStored returns the events of a turn that a reader has not received, none if the turn has not ended. uid is that
// of the conversation. If it is empty, restOfStored sets it.
func (m *Manager) restOfStored(
	ctx context.Context, at key, uid *string, turnID string, received Received,
) ([]*parleyv1.TurnEvent, error) {
	snapshot, err := m.o.Store.Read(ctx, &store.Read{Tenant: at.tenant, ConversationID: at.id})
	if err != nil {
		return nil, asDeleted(err)
	}
	if *uid == "" {
		*uid = snapshot.Conversation.GetUid()
	}
	switch {
	case snapshot.Conversation.GetUid() != *uid:
		return nil, ErrConversationDeleted
	case snapshot.Conversation.GetActiveTurnId() == turnID:
		return nil, nil
	}
	found, err := m.findStored(ctx, at, turnID)
	if err != nil {
		return nil, asDeleted(err)
	}
	if found.Turn.GetFinishTime() == nil {
		return nil, nil // It began after the first read.
	}
	stored, err := m.readStored(ctx, at, *uid, found)
	if errors.As(err, new(*NotFoundError)) {
		err = ErrConversationDeleted
	}
	if err != nil {
		return nil, asDeleted(err)
	}
	return stored.Rest(received)
}

// asDeleted returns ErrConversationDeleted for the error of a conversation that does not exist, and others unchanged.
func asDeleted(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ErrConversationDeleted
	}
	return err
}

// readStored returns a turn that has ended, from the conversation with this uid. It returns a NotFoundError if another
// conversation has the id now.
func (m *Manager) readStored(ctx context.Context, at key, uid string, found *store.FoundTurn) (*replay.Turn, error) {
	snapshot, err := m.o.Store.Read(ctx, messagesOf(at, found.Turn))
	if err != nil {
		return nil, err
	}
	if snapshot.Conversation.GetUid() != uid {
		return nil, &NotFoundError{TurnID: found.Turn.GetId()}
	}
	return replay.New(snapshot, found)
}
