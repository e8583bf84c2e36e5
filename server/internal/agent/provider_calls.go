package agent

import (
	"encoding/json"
	"fmt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// MaxCallIDBytes is the maximum length of the id of a call, which the model's provider chooses.
const MaxCallIDBytes = 256

const (
	// maxCalls and maxCallBytes limit the calls of one answer. Calls that the model is still writing
	// are retained here until they are complete.
	maxCalls     = 1000
	maxCallBytes = 4 << 20
	// maxCallNameBytes is the limit of the API.
	maxCallNameBytes = 128
)

// CallLimits counts the tool calls of a streamed answer. The zero value is ready for use.
type CallLimits struct{ calls, bytes int }

// Add adds a number of new calls, and bytes of new or earlier calls. It returns an *Error if there
// are more than 1000 calls or more than 4 MiB.
func (b *CallLimits) Add(calls, bytes int) error {
	b.calls += calls
	b.bytes += bytes
	switch {
	case b.calls > maxCalls:
		return &Error{Message: fmt.Sprintf("the model made more than %d tool calls in one answer", maxCalls)}
	case b.bytes > maxCallBytes:
		return &Error{Message: fmt.Sprintf("the model's tool calls are larger than %d bytes", maxCallBytes)}
	}
	return nil
}

// CheckCallName returns an *Error unless the name of a called tool has 1 to 128 bytes.
func CheckCallName(name string) error {
	if name == "" || len(name) > maxCallNameBytes {
		return &Error{
			Message:   fmt.Sprintf("the model called a tool with a name of %d bytes, want 1 to %d", len(name), maxCallNameBytes),
			Retryable: true,
		}
	}
	return nil
}

// CallDelta returns the piece with the next part of the arguments of a call that the model is writing. id
// and name must be valid.
func CallDelta(id, name, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCallDelta{
		ToolCallDelta: &parleyv1.ToolCallDelta{Id: id, Name: name, Arguments: arguments},
	}}
}

// ReasoningPiece returns the piece with the next part of the reasoning that a model reports.
func ReasoningPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Reasoning{Reasoning: text}}
}

// IsComplete reports whether to pass on a call of an answer that ended with the finish reason of
// either API. The call is complete if its arguments are JSON or if the model ended the answer
// itself. Otherwise the end of the answer cut off the call, and it cannot be run.
func IsComplete(call *parleyv1.ToolCall, finish string) bool {
	switch finish {
	case "", "stop", "tool_calls", "function_call", "tool_use":
		return true
	}
	return json.Valid([]byte(call.GetArguments()))
}

// CheckEmpty returns an *Error for an answer without text and calls if the finish reason explains
// why. It returns nil if an empty answer is valid.
func CheckEmpty(finish string) error {
	var cause string
	switch finish {
	case "length", "max_tokens":
		cause = "the model used all output tokens before the first word; increase max_output_tokens or reduce reasoning"
	case "model_context_window_exceeded":
		cause = "the conversation fills the model's context; configure a smaller window for the agent"
	case "content_filter":
		cause = "the provider's content filter withheld it"
	case "refusal":
		cause = "the model refused to answer"
	default:
		return nil
	}
	return &Error{Message: fmt.Sprintf("the answer is empty: %s (%s)", cause, finish)}
}
