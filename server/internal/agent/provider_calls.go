package agent

import (
	"encoding/json"
	"fmt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// maxCalls and maxCallBytes bound the calls of one answer: nothing of them is passed
	// on before they are whole, so nobody else can stop them.
	maxCalls     = 1000
	maxCallBytes = 4 << 20
	// maxCallNameBytes is what the API of messages allows.
	maxCallNameBytes = 128
)

// CallBounds counts the tool calls of an answer as a provider streams it. The zero value
// has counted none.
type CallBounds struct{ calls, bytes int }

// Add counts calls that have begun, and bytes of these and earlier ones. It returns an
// *Error when there are more than 1000 calls, or 4 MiB of them.
func (b *CallBounds) Add(calls, bytes int) error {
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

// CheckCallName returns an *Error unless the name of a tool that a model calls has 1 to 128
// bytes.
func CheckCallName(name string) error {
	if name == "" || len(name) > maxCallNameBytes {
		return &Error{
			Message:   fmt.Sprintf("the model called a tool by a name of %d bytes, not 1 to %d", len(name), maxCallNameBytes),
			Retryable: true,
		}
	}
	return nil
}

// IsWhole reports whether a call is to be passed on from an answer that ended for this reason,
// in the words of either API: its arguments are JSON, or the model meant to end there. Any
// other call is one that the end cut off, and which nobody could run.
func IsWhole(call *parleyv1.ToolCall, finish string) bool {
	switch finish {
	case "", "stop", "tool_calls", "function_call", "tool_use":
		return true
	}
	return json.Valid([]byte(call.GetArguments()))
}

// CheckEmpty returns an *Error that says why a model gave an answer without a word and without
// a call, where the reason for its end tells that; nil where a model may well say nothing.
func CheckEmpty(finish string) error {
	var why string
	switch finish {
	case "length", "max_tokens":
		why = "all its tokens were used up before the first word; set max_output_tokens higher, or have the model reason less"
	case "model_context_window_exceeded":
		why = "the conversation fills the model's context; give the agent a smaller window"
	case "content_filter":
		why = "the provider's content filter held it back"
	case "refusal":
		why = "the model refused to give one"
	default:
		return nil
	}
	return &Error{Message: fmt.Sprintf("there is no answer: %s (%s)", why, finish)}
}
