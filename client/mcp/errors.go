package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

var (
	errTooManyCalls = fmt.Errorf("limit of %d concurrent calls reached; try again when one of them has ended", maxCalls)
	errTooManyLarge = fmt.Errorf("limit of %d concurrent requests larger than %d bytes reached; try again when one of "+
		"them has ended", maxLargeRequests, largeRequestBytes)
	errCancelled = errors.New("the call was cancelled, and with it the turn")
	errInternal  = errors.New("internal error")
)

// errorData is the error.data of an error, for programs.
type errorData struct {
	// Reason is the stable reason of the Parley API, such as AGENT_FAILED, or TOO_MANY_CALLS. If the
	// error has no reason, it is the name of Status.
	Reason string `json:"reason"`
	// Status is the gRPC code, such as NotFound, if a call to the Parley server failed.
	Status string `json:"status,omitempty"`
	// Retryable means that the same call may succeed later.
	Retryable bool `json:"retryable"`
	// Arguments maps each invalid argument to its problem.
	Arguments map[string]string `json:"arguments,omitempty"`
	// Metadata is the metadata of the reason: known_agents, active_turn_id, limit_bytes.
	Metadata map[string]string `json:"metadata,omitempty"`
	// The following fields are set if the turn had started.
	ConversationID string `json:"conversation_id,omitempty"`
	TurnID         string `json:"turn_id,omitempty"`
	State          string `json:"state,omitempty"`
}

// toRPC converts err to an error of JSON-RPC. No other function does this. The code -32602 means that the call cannot
// succeed with these arguments. The code -32603 is for all other errors: the agent or the Parley server
// failed, the server is unreachable, a limit is reached, or a turn was interrupted.
func toRPC(err error) error {
	code, text, data := jsonrpc.CodeInternalError, err.Error(), errorData{Reason: "INTERNAL"}
	var (
		bad     *argumentError
		failed  *turnError
		lost    *lostError
		refused = refusalOf(err)
	)
	switch {
	case errors.As(err, &bad):
		code, data = jsonrpc.CodeInvalidParams, bad.data()
	case errors.As(err, &failed):
		data = failed.data()
	case errors.As(err, &lost): // This case precedes refused, which may be the cause.
		data = lost.data()
	case errors.Is(err, errTooManyCalls):
		data = errorData{Reason: "TOO_MANY_CALLS", Retryable: true}
	case errors.Is(err, errCancelled), errors.Is(err, context.Canceled):
		data = errorData{Reason: "CANCELLED"}
	case refused != nil:
		text, data = refused.text(), refused.data()
		if faults := refused.faults(); len(faults) > 0 {
			code, text, data.Arguments = jsonrpc.CodeInvalidParams, joinFaults(faults), faultsByArgument(faults)
		}
	}
	encoded, failure := json.Marshal(data)
	if failure != nil {
		return failure // This cannot happen for strings.
	}
	return &jsonrpc.Error{Code: int64(code), Message: text, Data: encoded}
}

// argumentError contains the faults of the arguments of a call.
type argumentError struct{ faults []fault }

// Error returns the text of all faults.
func (e *argumentError) Error() string { return joinFaults(e.faults) }

func (e *argumentError) data() errorData {
	return errorData{Reason: "INVALID_REQUEST", Arguments: faultsByArgument(e.faults)}
}

// joinFaults returns the text of faults.
func joinFaults(faults []fault) string {
	problems := make([]string, len(faults))
	for i, f := range faults {
		problems[i] = f.argument + ": " + f.problem
	}
	return strings.Join(problems, "; ")
}

// faultsByArgument returns the problems of faults by argument.
func faultsByArgument(faults []fault) map[string]string {
	problems := make(map[string]string, len(faults))
	for _, f := range faults {
		problems[f.argument] = f.problem
	}
	return problems
}

// turnError is the error of a turn that ended without a complete answer.
type turnError struct{ turn *turn }

// failure returns a turnError, or nil if the turn has a complete answer.
func (t *turn) failure() error {
	switch t.finished.GetTurn().GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		return nil
	default:
		return &turnError{t}
	}
}

// Error returns how the turn ended, why, and where to read the partial answer.
func (e *turnError) Error() string {
	end := e.turn.finished.GetTurn()
	var text string
	switch end.GetState() {
	case parleyv1.TurnState_TURN_STATE_FAILED:
		text = fmt.Sprintf("agent %q failed", end.GetAgent())
	case parleyv1.TurnState_TURN_STATE_CANCELLED:
		text = fmt.Sprintf("the answer of agent %q was cancelled by another caller", end.GetAgent())
	default:
		text = fmt.Sprintf("the answer of agent %q was interrupted", end.GetAgent())
	}
	if message := end.GetError().GetMessage(); message != "" {
		text += ": " + message
	}
	return fmt.Sprintf("%s (%s); %s", text, end.GetError().GetReason(), e.turn.historyHint())
}

func (e *turnError) data() errorData {
	end := e.turn.finished.GetTurn()
	return errorData{
		Reason: end.GetError().GetReason(), Retryable: end.GetError().GetRetryable(),
		ConversationID: e.turn.conversation, TurnID: e.turn.id, State: stateName(end.GetState()),
	}
}

// lostError is the error of a call that failed after its turn had started. How the turn ended is unknown.
type lostError struct {
	turn *turn
	err  error
}

// Error returns the cause and where to read the partial answer.
func (e *lostError) Error() string {
	refused := refusalOf(e.err)
	switch {
	case refused == nil:
		return e.err.Error() + "; " + e.turn.historyHint()
	case refused.info.GetReason() == "CONVERSATION_NOT_FOUND":
		return refused.text() // There is no history to read.
	default:
		return refused.text() + "; " + e.turn.historyHint()
	}
}

// Unwrap returns the cause.
func (e *lostError) Unwrap() error { return e.err }

func (e *lostError) data() errorData {
	data := errorData{Reason: "INTERNAL"}
	if refused := refusalOf(e.err); refused != nil {
		data = refused.data()
	}
	data.ConversationID, data.TurnID = e.turn.conversation, e.turn.id
	return data
}

// historyHint describes where to read the stored part of an answer.
func (t *turn) historyHint() string {
	return fmt.Sprintf("call get_history for conversation %s to read what is stored", t.conversation)
}
