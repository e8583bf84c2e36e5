package turn

import (
	"errors"
	"fmt"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/store"
)

// Codes of google.rpc.Code, which a TurnError has as numbers. Only package rpc imports the package
// that defines them.
const (
	codeCancelled         = 1
	codeDeadlineExceeded  = 4
	codeResourceExhausted = 8
	codeAborted           = 10
	codeInternal          = 13
	codeUnavailable       = 14
)

// outcome returns the state and the error of a turn that ends for this cause. A nil cause means a
// complete answer.
func (x *execution) outcome(cause error) (parleyv1.TurnState, *parleyv1.TurnError) {
	var failure *agent.Error
	var large *answer.TooLargeError
	failed := parleyv1.TurnState_TURN_STATE_FAILED
	switch {
	case cause == nil:
		return parleyv1.TurnState_TURN_STATE_COMPLETED, nil
	case errors.Is(cause, ErrShuttingDown):
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED, interruptedByStop()
	case errors.Is(cause, errCancelled):
		return parleyv1.TurnState_TURN_STATE_CANCELLED,
			&parleyv1.TurnError{Code: codeCancelled, Reason: "CANCELLED", Message: "the turn was cancelled"}
	case errors.Is(cause, errDisconnected):
		return parleyv1.TurnState_TURN_STATE_CANCELLED, &parleyv1.TurnError{
			Code: codeCancelled, Reason: "CANCELLED", Message: "the last reader disconnected and on_disconnect is CANCEL",
		}
	case errors.Is(cause, ErrConversationDeleted):
		// This is stored only if the store still has the conversation and the turn.
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED, &parleyv1.TurnError{
			Code: codeAborted, Reason: "INTERRUPTED", Message: "the conversation was not found while the turn ran",
			Retryable: true,
		}
	case errors.Is(cause, errEndedElsewhere):
		// This is stored only if the store has lost the end by the other server.
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED, &parleyv1.TurnError{
			Code: codeAborted, Reason: "INTERRUPTED", Message: "another server ended the turn", Retryable: true,
		}
	case errors.Is(cause, errInterrupted):
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED,
			&parleyv1.TurnError{Code: codeAborted, Reason: "INTERRUPTED", Message: "a later request interrupted the turn"}
	case errors.Is(cause, errHistoryUnreadable):
		x.log.Error("turn failed", "error", cause)
		return failed, &parleyv1.TurnError{
			Code: codeInternal, Reason: "INTERNAL", Message: "the history could not be read; see the server log",
			Retryable: true,
		}
	case errors.Is(cause, errTurnTimeout):
		return failed, timeoutError(fmt.Sprintf("agent %s did not finish within %s", x.agent.Name, x.manager.o.TurnTimeout))
	case errors.Is(cause, errIdleTimeout):
		return failed, timeoutError(fmt.Sprintf("agent %s sent nothing for %s", x.agent.Name, x.manager.o.IdleTimeout))
	case errors.As(cause, &large):
		return failed, &parleyv1.TurnError{
			Code: codeResourceExhausted, Reason: "AGENT_OUTPUT_TOO_LARGE",
			Message: fmt.Sprintf("the answer of agent %s %v; the part within the limit is stored", x.agent.Name, large),
		}
	case errors.As(cause, &failure):
		if failure.Detail != "" {
			x.log.Warn("agent failed", "error", failure.Message, "detail", strings.ToValidUTF8(failure.Detail, "\uFFFD"))
		}
		return failed, &parleyv1.TurnError{
			Code: codeUnavailable, Reason: "AGENT_FAILED",
			Message:   fmt.Sprintf("agent %s failed: %s", x.agent.Name, strings.ToValidUTF8(failure.Message, "\uFFFD")),
			Retryable: failure.Retryable,
		}
	}
	// The text of an unknown error may contain internals, so it goes to the log only.
	x.log.Error("agent failed", "error", cause)
	return failed, &parleyv1.TurnError{
		Code: codeUnavailable, Reason: "AGENT_FAILED", Message: fmt.Sprintf("agent %s failed", x.agent.Name), Retryable: true,
	}
}

// storeFailure is the error of a turn whose answer the store refused.
func storeFailure() *parleyv1.TurnError {
	return &parleyv1.TurnError{
		Code: codeInternal, Reason: "INTERNAL", Message: "the answer could not be stored; see the server log",
		Retryable: true,
	}
}

// recordsRefusal returns the error of a turn whose answer the store refused because of its records, or nil if err is
// another one.
func recordsRefusal(err error) *parleyv1.TurnError {
	if revision, ok := errors.AsType[*store.RevisionError](err); ok {
		return &parleyv1.TurnError{
			Code: codeAborted, Reason: "REVISION_MISMATCH", Retryable: true,
			Message: fmt.Sprintf("the agent's %v; read it and answer again", revision),
		}
	}
	if full, ok := errors.AsType[*store.RecordsFullError](err); ok {
		return &parleyv1.TurnError{
			Code: codeResourceExhausted, Reason: "RECORDS_FULL", Message: full.Error() + "; delete records",
		}
	}
	if full, ok := errors.AsType[*store.TenantBytesError](err); ok {
		return &parleyv1.TurnError{
			Code: codeResourceExhausted, Reason: "TENANT_BYTES", Message: full.Error() + "; delete conversations or records",
		}
	}
	if errors.Is(err, store.ErrNoSpace) {
		return &parleyv1.TurnError{
			Code: codeResourceExhausted, Reason: "STORE_FULL", Retryable: true,
			Message: "the disk of the store is full, and the records of the answer do not fit; free some space and answer again",
		}
	}
	return nil
}

func timeoutError(message string) *parleyv1.TurnError {
	return &parleyv1.TurnError{Code: codeDeadlineExceeded, Reason: "AGENT_TIMEOUT", Message: message, Retryable: true}
}

// interruptedByStop is the error of a turn that was cut off by a stop or a crash of the server.
func interruptedByStop() *parleyv1.TurnError {
	return &parleyv1.TurnError{
		Code: codeUnavailable, Reason: "SHUTTING_DOWN", Message: "the server stopped before the answer was complete",
		Retryable: true,
	}
}
