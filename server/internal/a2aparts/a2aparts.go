// Package a2aparts has the form of what messages of Parley have and the A2A protocol has no parts for: a data part
// whose metadata has the key [TypeKey]. The A2A API of the server and its agents of the kind a2a have the same form, so
// that one Parley server can be the agent of another one. Start at [New].
package a2aparts

import (
	"encoding/json"

	"github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Keys of the metadata of parts and messages.
const (
	TypeKey      = "parley.type"      // of a data part: StructuredData.type, or one of the types below
	ReasonKey    = "parley.reason"    // of the message of a status: TurnError.reason
	RetryableKey = "parley.retryable" // likewise: TurnError.retryable
)

// Types of data parts with a meaning of their own.
const (
	TypeCall   = "tool_call"
	TypeResult = "tool_result"
	TypeData   = "a2a.data" // of data without a type
)

// Members of the data of a tool call and of a result.
const (
	callField = "toolCall"
	// ResultField has the result of a tool call.
	ResultField = "toolResult"
)

// New returns a data part with a type.
func New(kind string, value map[string]any) *a2a.Part {
	part := a2a.NewDataPart(value)
	part.MediaType = "application/json"
	part.Metadata = map[string]any{TypeKey: kind}
	return part
}

// OfData returns a part for structured data. Over gRPC the value of a data part is an object, so any other value
// becomes {"value": …} in all bindings.
func OfData(data *parleyv1.StructuredData) *a2a.Part {
	value := data.GetValue().AsInterface()
	object, ok := value.(map[string]any)
	if !ok {
		object = map[string]any{"value": value}
	}
	return New(data.GetType(), object)
}

// OfCall returns a part for a tool call. The arguments are JSON in a text, exactly as the model wrote them.
func OfCall(call *parleyv1.ToolCall) *a2a.Part {
	return New(TypeCall, map[string]any{callField: map[string]any{
		"id": call.GetId(), "name": call.GetName(), "arguments": call.GetArguments(),
	}})
}

// OfResult returns a part for the result of a tool call.
func OfResult(r *parleyv1.ToolResult) *a2a.Part {
	return New(TypeResult, map[string]any{ResultField: map[string]any{
		"callId": r.GetCallId(), "name": r.GetName(), "content": r.GetContent(), "isError": r.GetIsError(),
	}})
}

// Call returns the tool call in a part, and whether the part is one. The call is nil if it is malformed.
func Call(p *a2a.Part) (call *parleyv1.ToolCall, isCall bool) {
	if p.Metadata[TypeKey] != TypeCall {
		return nil, false
	}
	data, isObject := p.Data().(map[string]any)
	if !isObject {
		return nil, true
	}
	fields, isObject := data[callField].(map[string]any)
	if !isObject {
		return nil, true
	}
	id, hasID := fields["id"].(string)
	name, hasName := fields["name"].(string)
	if !hasID || !hasName {
		return nil, true
	}
	arguments, isText := fields["arguments"].(string)
	if !isText && fields["arguments"] != nil {
		encoded, err := json.Marshal(fields["arguments"])
		if err != nil {
			return nil, true
		}
		arguments = string(encoded)
	}
	return &parleyv1.ToolCall{Id: id, Name: name, Arguments: arguments}, true
}
