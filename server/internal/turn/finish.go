package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/store"
)

// storeRetry is the time before a turn retries to store its answer in a store that is overloaded or
// out of space.
const storeRetry = 100 * time.Millisecond

// finish stores the answer. It returns the finished event, or the error with which the streams of
// readers end. It always calls the store, even if the conversation was reported as deleted: only
// the store knows whether the turn still runs there, and a turn that is not ended keeps its
// conversation busy until the next start.
func (t *liveTurn) finish(cause error) (*parleyv1.TurnFinished, error) {
	var messages []*parleyv1.Message
	messages, t.eventIndexes.Messages = t.answer.Finish(cause == nil)
	end := &parleyv1.Turn{Id: t.id}
	end.State, end.Error = t.outcome(cause)
	if cause == nil && t.answer.HasOpenCalls() {
		end.State = parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED
	}
	result, err := t.commitEnd(messages, end)
	if err != nil && isAnswerError(err) {
		// Store the text alone, so that it is not lost and the conversation can be used again.
		t.log.Error("answer refused by the store, storing its text", "error", err)
		messages, t.eventIndexes.Messages = answer.TextOnly(messages, t.eventIndexes.GetMessages())
		end.State, end.Error = parleyv1.TurnState_TURN_STATE_FAILED, storeFailure()
		result, err = t.commitEnd(messages, end)
	}
	if err != nil && isAnswerError(err) {
		t.log.Error("text of the answer refused by the store, ending the turn without it", "error", err)
		messages, t.eventIndexes.Messages = nil, nil
		result, err = t.commitEnd(nil, end)
	}
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrTurnEnded):
		t.log.Info("turn ended with its conversation")
		return nil, ErrConversationGone
	case err != nil:
		t.log.Error("answer could not be stored", "error", err)
		return nil, fmt.Errorf("store the answer: %w", err)
	}
	t.answer.SetStored(messages, result.Appended)
	t.log.Debug("answer appended", "pieces", t.answer.Pieces(), "messages", len(messages))
	if e := end.GetError(); e != nil {
		t.log.Warn("turn did not complete", "state", end.GetState().String(), "reason", e.GetReason(), "error",
			e.GetMessage())
	}
	return &parleyv1.TurnFinished{
		Turn: result.Turn, Messages: messages, ConversationVersion: result.Conversation.GetVersion(),
	}, nil
}

// isAnswerError reports whether the store may accept another answer after this error. Errors other
// than those of the store mean that a message cannot be encoded.
func isAnswerError(err error) bool {
	for _, known := range []error{
		store.ErrNotFound, store.ErrTurnEnded, store.ErrNoSpace, store.ErrOverloaded, store.ErrCorrupt, store.ErrFailed,
		store.ErrClosed,
	} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// commitEnd ends the turn in the store. It retries while the store is overloaded or the disk is
// full. If the server stops while the disk is full, commitEnd returns; the next start ends the turn
// with the saved part of its answer.
func (t *liveTurn) commitEnd(messages []*parleyv1.Message, end *parleyv1.Turn) (*store.Result, error) {
	logged := false
	for {
		t.eventIndexes.Finished = t.events.ReserveFinished()
		result, err := t.manager.o.Store.Append(context.WithoutCancel(t.ctx), &store.Append{
			Tenant: t.queue.tenant, ConversationID: t.queue.id, Messages: messages, End: end, Events: t.eventIndexes,
		})
		full := errors.Is(err, store.ErrNoSpace)
		if !full && !errors.Is(err, store.ErrOverloaded) || full && t.manager.ctx.Err() != nil {
			return result, err
		}
		t.events.ReleaseReserved()
		var stop <-chan struct{}
		if full {
			stop = t.manager.ctx.Done()
			if !logged {
				logged = true
				t.log.Warn("disk full, answer waits", "error", err)
			}
		}
		select {
		case <-time.After(storeRetry):
		case <-stop:
		}
	}
}
