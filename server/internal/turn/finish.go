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
// out of space or unavailable.
const storeRetry = 100 * time.Millisecond

// finish stores the answer. It returns the finished event, or the error with which the streams of
// readers end. It always calls the store, even if the conversation was reported as deleted: only
// the store knows whether the turn still runs there, and a turn that is not ended keeps its
// conversation busy until the next start.
func (x *execution) finish(cause error) (*parleyv1.TurnFinished, error) {
	var messages []*parleyv1.Message
	messages, x.eventIndexes.Messages = x.live.answer.Finish(cause == nil)
	for _, m := range messages {
		if kind, dropped := m.GetMetadata()[answer.NativeDropped]; dropped {
			x.log.Warn("native form of the answer dropped", "type", kind)
		}
	}
	end := &parleyv1.Turn{Id: x.live.id}
	end.State, end.Error = x.outcome(cause)
	if cause == nil && x.live.answer.HasOpenCalls() {
		end.State = parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED
	}
	var records []*parleyv1.RecordWrite
	if cause == nil {
		records = x.live.answer.Records()
	}
	result, err := x.commitEnd(messages, end, records)
	if refusal := recordsRefusal(err); refusal != nil && len(records) > 0 {
		x.log.Warn("records of the answer refused by the store, it is stored without them", "error", err)
		x.live.answer.SetIncomplete()
		end.State, end.Error = parleyv1.TurnState_TURN_STATE_FAILED, refusal
		result, err = x.commitEnd(messages, end, nil)
	}
	if err != nil && isAnswerError(err) {
		// Store the text alone, so that it is not lost and the conversation can be used again.
		x.log.Error("answer refused by the store, its text is stored", "error", err)
		messages, x.eventIndexes.Messages = answer.TextOnly(messages, x.eventIndexes.GetMessages())
		end.State, end.Error = parleyv1.TurnState_TURN_STATE_FAILED, storeFailure()
		result, err = x.commitEnd(messages, end, nil)
	}
	if err != nil && isAnswerError(err) {
		x.log.Error("text of the answer refused by the store, the turn ends without it", "error", err)
		messages, x.eventIndexes.Messages = nil, nil
		result, err = x.commitEnd(nil, end, nil)
	}
	x.end.State, x.end.Reason = end.GetState(), end.GetError().GetReason()
	switch {
	case errors.Is(err, store.ErrTurnEnded):
		return nil, x.endedElsewhere()
	case errors.Is(err, store.ErrNotFound):
		x.log.Info("turn ended with its conversation")
		return nil, ErrConversationDeleted
	case err != nil:
		x.log.Error("answer could not be stored", "error", err)
		x.end.State, x.end.Reason = parleyv1.TurnState_TURN_STATE_FAILED, storeFailure().GetReason()
		x.manager.leave(x.live.id, leftTurn{conversation: x.live.conversation})
		return nil, fmt.Errorf("store the answer: %w", err)
	}
	x.live.answer.SetStored(messages, result.Appended)
	x.log.Debug("answer appended", "pieces", x.live.answer.Pieces(), "messages", len(messages))
	if e := end.GetError(); e != nil {
		x.log.Warn("turn did not complete",
			"state", end.GetState().String(), "reason", e.GetReason(), "error", e.GetMessage())
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
		store.ErrClosed, store.ErrUnavailable,
	} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// commitEnd ends the turn in the store and writes the records of its answer. It retries while the store is
// overloaded or unavailable, or the disk is full. On a full disk, it returns if there are records, since the store
// has a reserve for answers but not for records. In both of the last cases it returns if the server stops. After a
// stop, the next start ends the turn with the saved part of its answer.
func (x *execution) commitEnd(
	messages []*parleyv1.Message, end *parleyv1.Turn, records []*parleyv1.RecordWrite,
) (*store.Result, error) {
	logged := false
	for {
		x.eventIndexes.Finished = x.live.events.ReserveFinished()
		result, err := x.manager.o.Store.Append(context.WithoutCancel(x.live.ctx), &store.Append{
			Tenant: x.live.conversation.tenant, ConversationID: x.live.conversation.id, Messages: messages, End: end,
			Events: x.eventIndexes, Records: records,
		})
		full, unavailable := errors.Is(err, store.ErrNoSpace), errors.Is(err, store.ErrUnavailable)
		lasts := full || unavailable // maybe longer than the server
		if !lasts && !errors.Is(err, store.ErrOverloaded) || lasts && x.manager.ctx.Err() != nil || full && len(records) > 0 {
			return result, err
		}
		if !unavailable { // Otherwise the answer may have been stored, with the reserved index.
			x.live.events.ReleaseReserved()
		}
		var stop <-chan struct{}
		if lasts {
			stop = x.manager.ctx.Done()
		}
		switch {
		case logged:
		case full:
			x.log.Warn("disk full, answer waits", "error", err)
		case unavailable:
			x.log.Warn("store unavailable, answer waits", "error", err)
		}
		logged = logged || lasts
		select {
		case <-time.After(storeRetry):
		case <-stop:
		}
	}
}
