package agent

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// noResult is the result that a model receives for a call that was not answered.
const noResult = "no result"

// Answered returns the messages in the order that a model's API requires. After each assistant
// message with tool calls follow the results of its calls, one for each, in the order of the calls.
// There are no other results. All other messages keep their order.
//
//   - Which call a result answers is defined by ToolResult.call_id.
//   - A call without a result gets the result "no result", whether it is open or not. This includes a call whose
//     result arrived after other messages.
//   - Such a late result, and a result without a call, becomes a user message that contains it as text, at the
//     same position. The model has already received "no result" and must answer what is new at the end.
//   - A call whose id is empty or was used before gets another id, and so does its result. Ids are assigned from
//     the oldest message on. New messages at the end therefore do not change earlier ones, and a provider's
//     prompt cache stays valid.
//
// The messages are not changed. Messages of the result that needed no change are shared with the
// input, so callers must not change them.
func Answered(messages []*parleyv1.Message) []*parleyv1.Message {
	calls, taken := pair(messages)
	answered := make([]*parleyv1.Message, 0, len(messages))
	for i, message := range messages {
		switch {
		case taken[i]: // It follows its call.
		case message.GetRole() == parleyv1.Role_ROLE_TOOL:
			answered = append(answered, asUserMessage(message))
		default:
			answered = append(answered, withIDs(message, calls[i]))
			for _, call := range calls[i] {
				answered = append(answered, call.resultMessage())
			}
		}
	}
	return answered
}

// call is a tool call with its result.
type call struct {
	*parleyv1.ToolCall
	id     string            // Id that the model receives; usually the call's own.
	result *parleyv1.Message // Nil if the call was not answered.
}

// pair returns the calls of each message with their results, and which messages are those results.
func pair(messages []*parleyv1.Message) (calls [][]*call, taken []bool) {
	calls, taken = make([][]*call, len(messages)), make([]bool, len(messages))
	ids := ids{used: map[string]bool{"": true}, copies: make(map[string]int)}
	// Calls of the last assistant message by their own id. The first call gets the next result.
	open := make(map[string][]*call)
	for i, message := range messages {
		switch message.GetRole() {
		case parleyv1.Role_ROLE_USER:
			clear(open)
		case parleyv1.Role_ROLE_ASSISTANT:
			clear(open)
			for _, c := range message.GetToolCalls() {
				calls[i] = append(calls[i], &call{ToolCall: c, id: ids.next(c.GetId())})
			}
			for _, c := range calls[i] {
				open[c.GetId()] = append(open[c.GetId()], c)
			}
		case parleyv1.Role_ROLE_TOOL:
			id := message.GetToolResult().GetCallId()
			if len(open[id]) > 0 {
				open[id][0].result, taken[i] = message, true
				open[id] = open[id][1:]
			}
		}
	}
	return calls, taken
}

// ids assigns unique ids to calls.
type ids struct {
	used   map[string]bool
	copies map[string]int // Number of duplicates of each id.
}

// next returns the id if it is unused, otherwise a new id that is derived from it.
func (s ids) next(id string) string {
	for wanted := id; s.used[id]; {
		s.copies[wanted]++
		id = wanted + "_" + strconv.Itoa(s.copies[wanted]+1)
	}
	s.used[id] = true
	return id
}

// withIDs returns the message with the ids that were assigned to its calls.
func withIDs(message *parleyv1.Message, calls []*call) *parleyv1.Message {
	if !slices.ContainsFunc(calls, func(c *call) bool { return c.id != c.GetId() }) {
		return message
	}
	message = proto.CloneOf(message)
	for i, c := range calls {
		message.ToolCalls[i].Id = c.id
	}
	return message
}

// resultMessage returns the message with the result of the call.
func (c *call) resultMessage() *parleyv1.Message {
	if c.result == nil {
		return &parleyv1.Message{
			Role:       parleyv1.Role_ROLE_TOOL,
			ToolResult: &parleyv1.ToolResult{CallId: c.id, Name: c.GetName(), Content: noResult},
		}
	}
	if c.id == c.GetId() {
		return c.result
	}
	message := proto.CloneOf(c.result)
	message.ToolResult.CallId = c.id
	return message
}

// asUserMessage returns a result as the text of a user message. The other content of the message is
// kept.
func asUserMessage(message *parleyv1.Message) *parleyv1.Message {
	message = proto.CloneOf(message)
	message.Role = parleyv1.Role_ROLE_USER
	if result := message.GetToolResult(); result != nil {
		what := "Result of a tool"
		if result.GetIsError() {
			what = "Failure of a tool"
		}
		if result.GetName() != "" {
			what += " (" + result.GetName() + ")"
		}
		text := what + ": " + result.GetContent()
		if message.GetContent() != "" {
			text = message.GetContent() + "\n\n" + text
		}
		message.Content, message.ToolResult = text, nil
	}
	return message
}

// Text returns the text of a message for a model: its content, " [cut off]" if the message is
// INCOMPLETE, and its structured data. Each value has the form that [Blocks] recognizes in an
// answer:
//
//	```json type=library_list
//	{"libraries":["preact","solid"]}
//	```
//
// A blank line separates the parts. Tool calls, results and attachments are not included. Text
// returns "" if the message has none of these parts, or if [IsEmptyAnswer] reports true.
func Text(message *parleyv1.Message) string {
	if IsEmptyAnswer(message) {
		return ""
	}
	text := message.GetContent()
	if message.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		if text != "" {
			text += " "
		}
		text += "[cut off]"
	}
	if len(message.GetStructuredData()) == 0 {
		return text
	}
	var b strings.Builder
	b.WriteString(text)
	for _, data := range message.GetStructuredData() {
		if b.Len() > 0 {
			b.WriteString("\n\n")
		}
		b.WriteString(fenceOpen + data.GetType() + "\n" + JSON(data.GetValue()) + "\n" + fence)
	}
	return b.String()
}

// IsEmptyAnswer reports whether a message is an answer that was cut off before it said anything: an INCOMPLETE message
// of an assistant with at most reasoning. Models do not receive it.
func IsEmptyAnswer(message *parleyv1.Message) bool {
	return message.GetRole() == parleyv1.Role_ROLE_ASSISTANT &&
		message.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE && message.GetContent() == "" &&
		len(message.GetStructuredData())+len(message.GetToolCalls())+len(message.GetAttachments()) == 0
}

// IsWritten reports whether a message is what a model wrote, as this text and these calls: it is complete, it has
// exactly these calls and no attachment, and its text is this one. If it has structured data, its text and data
// are those that [Blocks] makes of the text. Arguments are compared as JSON.
//
// Only then does the native form of the message say the same as its other fields. Otherwise the message was changed
// after the model wrote it, for example by an export, an edit and an import, or its calls got other ids.
func IsWritten(message *parleyv1.Message, text string, calls []*parleyv1.ToolCall) bool {
	if message.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE || len(message.GetAttachments()) > 0 {
		return false
	}
	var found []*parleyv1.StructuredData
	if len(message.GetStructuredData()) > 0 {
		text, found = splitBlocks(text)
	}
	return text == message.GetContent() &&
		slices.EqualFunc(found, message.GetStructuredData(), func(a, b *parleyv1.StructuredData) bool {
			return proto.Equal(a, b)
		}) &&
		slices.EqualFunc(calls, message.GetToolCalls(), func(a, b *parleyv1.ToolCall) bool {
			return a.GetId() == b.GetId() && a.GetName() == b.GetName() && sameJSON(a.GetArguments(), b.GetArguments())
		})
}

// sameJSON reports whether two texts differ at most in the white space of JSON.
func sameJSON(a, b string) bool {
	if a == b {
		return true
	}
	var x, y bytes.Buffer
	return json.Compact(&x, []byte(a)) == nil && json.Compact(&y, []byte(b)) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// JSON returns the value as compact JSON with its keys in byte order. The result is the same for
// equal values, which protojson does not guarantee. Numbers that JSON does not support become
// strings, for example "NaN". A missing value becomes null.
func JSON(value *structpb.Value) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // The reader is a program or a model, not a browser.
	if err := e.Encode(value.AsInterface()); err != nil {
		return "null" // It cannot fail: AsInterface returns only values that JSON supports.
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
