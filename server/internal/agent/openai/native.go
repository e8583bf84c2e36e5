package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// nativeType is the Native.type of a message whose value is an assistant message of the API: a JSON object for the
// list of messages in a request.
const nativeType = "openai.chat.message"

// nativeDelta contains the fields of a delta that no other field of a message expresses. OpenAI's own API has none of
// them. Values are kept as the server sent them.
type nativeDelta struct {
	// Reasoning under the names that servers use: vLLM, llama.cpp, DeepSeek and others the first, OpenRouter, Ollama
	// and others the second.
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	Reasoning        json.RawMessage `json:"reasoning"`
	// Details is OpenRouter's list of reasoning, encrypted or signed.
	Details []json.RawMessage `json:"reasoning_details"`
	// Extra has Google's signature of a thought.
	Extra json.RawMessage `json:"extra_content"`
}

// native collects the fields of an answer for its native form. The zero value is ready for use.
type native struct {
	text             strings.Builder
	reasoningContent strings.Builder // The inside of a JSON string.
	reasoning        strings.Builder // The inside of a JSON string.
	details          []map[string]json.RawMessage
	extra            json.RawMessage
	bytes            int
	tooLarge         bool // There are more than agent.MaxNativeBytes; the rest is not collected.
	unknown          bool // A detail is not an object.
}

// addText adds text that was passed on.
func (n *native) addText(text string) {
	if n.grow(len(text)) {
		n.text.WriteString(text)
	}
}

// add adds the fields of a delta.
func (n *native) add(d *delta) {
	if part := stringInside(d.ReasoningContent); n.grow(len(part)) {
		n.reasoningContent.WriteString(part)
	}
	if part := stringInside(d.Reasoning); n.grow(len(part)) {
		n.reasoning.WriteString(part)
	}
	for _, detail := range d.Details {
		if !n.grow(len(detail)) {
			return
		}
		var fields map[string]json.RawMessage
		if json.Unmarshal(detail, &fields) != nil || fields == nil {
			n.unknown = true
			return
		}
		n.addDetail(fields)
	}
	if isSet(d.Extra) && n.grow(len(d.Extra)) {
		n.extra = d.Extra
	}
}

// grow reports whether a part of this size can be added.
func (n *native) grow(size int) bool {
	n.bytes += size
	n.tooLarge = n.tooLarge || n.bytes > agent.MaxNativeBytes
	return !n.tooLarge
}

// addDetail adds a detail, or the next part of the newest one. The server sends a detail in parts with the same type
// and index. The text is in all of them, the signature in the last one.
func (n *native) addDetail(part map[string]json.RawMessage) {
	last := len(n.details) - 1
	if last < 0 || !continues(n.details[last], part) {
		n.details = append(n.details, part)
		return
	}
	detail := n.details[last]
	for name, value := range part {
		switch before := detail[name]; {
		case !isSet(value):
		case isSet(before) && (name == "text" || name == "summary"):
			detail[name] = json.RawMessage(`"` + stringInside(before) + stringInside(value) + `"`)
		default:
			detail[name] = value
		}
	}
}

// continues reports whether part is the next part of a detail. Encrypted details arrive complete, and servers give
// several of them the same index.
func continues(detail, part map[string]json.RawMessage) bool {
	same := func(name string) bool { return bytes.Equal(detail[name], part[name]) }
	return same("type") && stringInside(part["type"]) != "reasoning.encrypted" && isSet(part["index"]) && same("index") &&
		(!isSet(detail["id"]) || !isSet(part["id"]) || same("id")) &&
		(!isSet(detail["signature"]) || stringInside(part["text"]) == "")
}

// isSet reports whether there is a value other than null.
func isSet(value json.RawMessage) bool { return len(value) > 0 && string(value) != "null" }

// stringInside returns a JSON string without its quotes, or "" if the value is not a string.
func stringInside(value json.RawMessage) string {
	if len(value) < 2 || value[0] != '"' {
		return ""
	}
	return string(value[1 : len(value)-1])
}

// pieces returns the native form of a complete answer, if the server sent fields that no other field of a message
// expresses. extras has those of calls, by the ids of the calls.
func (n *native) pieces(calls []*parleyv1.ToolCall, extras map[string]json.RawMessage) []*parleyv1.RespondResponse {
	fields := make(map[string]json.RawMessage)
	if n.reasoningContent.Len() > 0 {
		fields["reasoning_content"] = json.RawMessage(`"` + n.reasoningContent.String() + `"`)
	}
	if n.reasoning.Len() > 0 {
		fields["reasoning"] = json.RawMessage(`"` + n.reasoning.String() + `"`)
	}
	if len(n.details) > 0 {
		fields["reasoning_details"] = list(n.details)
	}
	if n.extra != nil {
		fields["extra_content"] = n.extra
	}
	switch {
	case n.unknown || len(fields)+len(extras) == 0:
		return nil
	case n.tooLarge:
		return []*parleyv1.RespondResponse{agent.NativePiece(nativeType, nil)}
	case len(calls) == 0 && strings.TrimSpace(n.text.String()) == "":
		return nil // The API would refuse such a message.
	}
	fields["role"] = json.RawMessage(`"assistant"`)
	if n.text.Len() > 0 || len(calls) == 0 {
		fields["content"] = agent.Quote(n.text.String())
	}
	if len(calls) > 0 {
		fields["tool_calls"] = nativeCalls(calls, extras)
	}
	return []*parleyv1.RespondResponse{agent.NativePiece(nativeType, agent.AppendJSON(nil, fields))}
}

// nativeCalls returns the calls as a JSON list.
func nativeCalls(calls []*parleyv1.ToolCall, extras map[string]json.RawMessage) json.RawMessage {
	all := make([]map[string]json.RawMessage, len(calls))
	for i, call := range calls {
		all[i] = map[string]json.RawMessage{
			"id":   agent.Quote(call.GetId()),
			"type": json.RawMessage(`"function"`),
			"function": agent.AppendJSON(nil, map[string]json.RawMessage{
				"name": agent.Quote(call.GetName()), "arguments": agent.Quote(arguments(call.GetArguments())),
			}),
		}
		if extra := extras[call.GetId()]; extra != nil {
			all[i]["extra_content"] = extra
		}
	}
	return list(all)
}

// list returns the objects as a JSON list.
func list(objects []map[string]json.RawMessage) json.RawMessage {
	b := []byte{'['}
	for i, object := range objects {
		if i > 0 {
			b = append(b, ',')
		}
		b = agent.AppendJSON(b, object)
	}
	return append(b, ']')
}

// hasOtherCase reports whether an object has one of the names in another case. Go reads such a field as if it had that
// name, and providers do not.
func hasOtherCase(object json.RawMessage, names ...string) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(object, &fields) != nil {
		return true
	}
	for field := range fields {
		for _, name := range names {
			if field != name && strings.EqualFold(field, name) {
				return true
			}
		}
	}
	return false
}

// ownMessage returns an answer as the API sent it. It returns nil if the message has no native form of this kind, or
// if that does not say the same as the other fields.
func ownMessage(message *parleyv1.Message) json.RawMessage {
	value := message.GetNative().GetValue()
	if message.GetRole() != parleyv1.Role_ROLE_ASSISTANT || message.GetNative().GetType() != nativeType {
		return nil
	}
	var own struct {
		Role      string     `json:"role"`
		Content   *string    `json:"content"`
		ToolCalls []toolCall `json:"tool_calls"`
	}
	if json.Unmarshal(value, &own) != nil || own.Role != "assistant" ||
		hasOtherCase(value, "role", "content", "tool_calls") {
		return nil
	}
	var calls []*parleyv1.ToolCall
	for i, c := range own.ToolCalls {
		call := &parleyv1.ToolCall{Id: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments}
		if i < len(message.GetToolCalls()) {
			// The arguments in a request are not always those of the message.
			if written := message.GetToolCalls()[i].GetArguments(); arguments(written) == call.GetArguments() {
				call.Arguments = written
			}
		}
		calls = append(calls, call)
	}
	if !agent.IsWritten(message, *cmp.Or(own.Content, new(string)), calls) {
		return nil
	}
	return value
}
