package turn

import (
	"errors"
	"fmt"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// Codes of google.rpc.Code, which a TurnError carries as numbers. The packages that name
// them belong to the rpc room.
const (
	codeCancelled         = 1
	codeDeadlineExceeded  = 4
	codeResourceExhausted = 8
	codeAborted           = 10
	codeInternal          = 13
	codeUnavailable       = 14
)

// outcome says how a turn ends whose agent stopped for this reason; nil is a whole answer.
func (t *liveTurn) outcome(cause error) (parleyv1.TurnState, *parleyv1.TurnError) {
	var failure *agent.Error
	var large *tooLargeError
	failed := parleyv1.TurnState_TURN_STATE_FAILED
	switch {
	case cause == nil:
		return parleyv1.TurnState_TURN_STATE_COMPLETED, nil
	case errors.Is(cause, ErrShuttingDown):
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED, interruptedByStop()
	case errors.Is(cause, errCancelled):
		return parleyv1.TurnState_TURN_STATE_CANCELLED, &parleyv1.TurnError{Code: codeCancelled, Reason: "CANCELLED", Message: "the turn was cancelled"}
	case errors.Is(cause, errDisconnected):
		return parleyv1.TurnState_TURN_STATE_CANCELLED, &parleyv1.TurnError{
			Code: codeCancelled, Reason: "CANCELLED", Message: "the last reader left, and the turn was to stop with it",
		}
	case errors.Is(cause, ErrConversationGone):
		// This is stored only if the store has the conversation and the turn after all.
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED, &parleyv1.TurnError{
			Code: codeAborted, Reason: "INTERRUPTED", Message: "the conversation was not found while the turn ran", Retryable: true,
		}
	case errors.Is(cause, errInterrupted):
		return parleyv1.TurnState_TURN_STATE_INTERRUPTED, &parleyv1.TurnError{Code: codeAborted, Reason: "INTERRUPTED", Message: "a later turn was to take its place"}
	case errors.Is(cause, errHistoryUnreadable):
		t.log.Error("turn failed", "error", cause)
		return failed, &parleyv1.TurnError{
			Code: codeInternal, Reason: "INTERNAL", Message: "the history could not be read; the log of the server says why", Retryable: true,
		}
	case errors.Is(cause, errTurnTimeout):
		return failed, timeoutError(fmt.Sprintf("agent %s did not finish within %s", t.agent.Name, t.manager.o.TurnTimeout))
	case errors.Is(cause, errIdleTimeout):
		return failed, timeoutError(fmt.Sprintf("agent %s sent nothing for %s", t.agent.Name, t.manager.o.IdleTimeout))
	case errors.As(cause, &large):
		return failed, &parleyv1.TurnError{
			Code: codeResourceExhausted, Reason: "AGENT_OUTPUT_TOO_LARGE",
			Message: fmt.Sprintf("the answer of agent %s %v; what fits is kept", t.agent.Name, large),
		}
	case errors.As(cause, &failure):
		if failure.Detail != "" {
			t.log.Warn("agent failed", "error", failure.Message, "detail", strings.ToValidUTF8(failure.Detail, "\uFFFD"))
		}
		return failed, &parleyv1.TurnError{
			Code: codeUnavailable, Reason: "AGENT_FAILED",
			Message: fmt.Sprintf("agent %s failed: %s", t.agent.Name, strings.ToValidUTF8(failure.Message, "\uFFFD")), Retryable: failure.Retryable,
		}
	}
	// Not an error that was made for people: it is in the log only.
	t.log.Error("agent failed", "error", cause)
	return failed, &parleyv1.TurnError{
		Code: codeUnavailable, Reason: "AGENT_FAILED", Message: fmt.Sprintf("agent %s failed", t.agent.Name), Retryable: true,
	}
}

// unstorable is why a turn failed whose answer the store did not take.
func storeFailure() *parleyv1.TurnError {
	return &parleyv1.TurnError{
		Code: codeInternal, Reason: "INTERNAL", Message: "the answer could not be stored; the log of the server says why", Retryable: true,
	}
}

func timeoutError(message string) *parleyv1.TurnError {
	return &parleyv1.TurnError{Code: codeDeadlineExceeded, Reason: "AGENT_TIMEOUT", Message: message, Retryable: true}
}

// stopped is why a turn ended that a stop of the server cut off, or that a start found
// running after a crash.
func interruptedByStop() *parleyv1.TurnError {
	return &parleyv1.TurnError{
		Code: codeUnavailable, Reason: "SHUTTING_DOWN", Message: "the server stopped before the answer was whole", Retryable: true,
	}
}
