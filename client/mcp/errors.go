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
	errTooManyCalls = fmt.Errorf("%d calls are under way, no more may be: try again when one has ended", maxCalls)
	errTooManyLarge = fmt.Errorf("limit of %d concurrent requests larger than %d bytes reached; try again when one of them has ended", maxLargeRequests, largeRequestBytes)
	errLeft         = errors.New("the call was cancelled, and with it the turn")
	errInternal     = errors.New("internal error")
)

// errorData is what programs are told of an error, as error.data.
type errorData struct {
	// Reason is the stable word of the Parley API, such as AGENT_FAILED, or TOO_MANY_CALLS;
	// the name of Status where the API gives none.
	Reason string `json:"reason"`
	// Status is the gRPC code, such as NotFound, where it was a call to the server that failed.
	Status string `json:"status,omitempty"`
	// Retryable: the same call may succeed later.
	Retryable bool `json:"retryable"`
	// Arguments are those that are wrong, and how.
	Arguments map[string]string `json:"arguments,omitempty"`
	// Metadata goes with the reason: known_agents, active_turn_id, limit_bytes.
	Metadata map[string]string `json:"metadata,omitempty"`
	// The rest is of a turn that had begun.
	ConversationID string `json:"conversation_id,omitempty"`
	TurnID         string `json:"turn_id,omitempty"`
	State          string `json:"state,omitempty"`
}

// toRPC makes err one of JSON-RPC, the only place that does. -32602 says that the call cannot
// succeed with these arguments; -32603 is all else: the agent failed, the Parley server did or
// is not there, a limit is reached, a turn was cut off.
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
	case errors.As(err, &lost): // Ahead of refused, which may be why.
		data = lost.data()
	case errors.Is(err, errTooManyCalls):
		data = errorData{Reason: "TOO_MANY_CALLS", Retryable: true}
	case errors.Is(err, errLeft), errors.Is(err, context.Canceled):
		data = errorData{Reason: "CANCELLED"}
	case refused != nil:
		text, data = refused.text(), refused.data()
		if faults := refused.faults(); len(faults) > 0 {
			code, text, data.Arguments = jsonrpc.CodeInvalidParams, joined(faults), named(faults)
		}
	}
	encoded, failure := json.Marshal(data)
	if failure != nil {
		return failure // Strings cannot.
	}
	return &jsonrpc.Error{Code: int64(code), Message: text, Data: encoded}
}

// argumentError says what is wrong with the arguments of a call.
type argumentError struct{ faults []fault }

// Error tells of all of it.
func (e *argumentError) Error() string { return joined(e.faults) }

func (e *argumentError) data() errorData {
	return errorData{Reason: "INVALID_REQUEST", Arguments: named(e.faults)}
}

// joined is the text of faults.
func joined(faults []fault) string {
	problems := make([]string, len(faults))
	for i, f := range faults {
		problems[i] = f.argument + ": " + f.problem
	}
	return strings.Join(problems, "; ")
}

// named are faults by their arguments.
func named(faults []fault) map[string]string {
	problems := make(map[string]string, len(faults))
	for _, f := range faults {
		problems[f.argument] = f.problem
	}
	return problems
}

// turnError says that a turn has ended without a whole answer.
type turnError struct{ turn *turn }

// failure returns a turnError unless the turn has its answer.
func (t *turn) failure() error {
	switch t.finished.GetTurn().GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		return nil
	default:
		return &turnError{t}
	}
}

// Error says what became of the turn, why, and where to read what the agent had said.
func (e *turnError) Error() string {
	end := e.turn.finished.GetTurn()
	var what string
	switch end.GetState() {
	case parleyv1.TurnState_TURN_STATE_FAILED:
		what = fmt.Sprintf("agent %q failed", end.GetAgent())
	case parleyv1.TurnState_TURN_STATE_CANCELLED:
		what = fmt.Sprintf("the answer of agent %q was cancelled by somebody else", end.GetAgent())
	default:
		what = fmt.Sprintf("the answer of agent %q was cut off", end.GetAgent())
	}
	if message := end.GetError().GetMessage(); message != "" {
		what += ": " + message
	}
	return fmt.Sprintf("%s (%s); %s", what, end.GetError().GetReason(), e.turn.kept())
}

func (e *turnError) data() errorData {
	end := e.turn.finished.GetTurn()
	return errorData{
		Reason: end.GetError().GetReason(), Retryable: end.GetError().GetRetryable(),
		ConversationID: e.turn.conversation, TurnID: e.turn.id, State: stateName(end.GetState()),
	}
}

// lostError says that a turn had begun, and what became of it is not known.
type lostError struct {
	turn *turn
	err  error
}

// Error says why, and where to look.
func (e *lostError) Error() string {
	refused := refusalOf(e.err)
	switch {
	case refused == nil:
		return e.err.Error() + "; " + e.turn.kept()
	case refused.info.GetReason() == "CONVERSATION_NOT_FOUND":
		return refused.text() // There is nothing to look at.
	default:
		return refused.text() + "; " + e.turn.kept()
	}
}

// Unwrap returns why.
func (e *lostError) Unwrap() error { return e.err }

func (e *lostError) data() errorData {
	data := errorData{Reason: "INTERNAL"}
	if refused := refusalOf(e.err); refused != nil {
		data = refused.data()
	}
	data.ConversationID, data.TurnID = e.turn.conversation, e.turn.id
	return data
}

func (t *turn) kept() string {
	return fmt.Sprintf("get_history of conversation %s has what is kept", t.conversation)
}
