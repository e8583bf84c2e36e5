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

// noResult is what a model reads of a call that nobody has answered.
const noResult = "no result"

// Answered returns the messages as a model's API takes them: behind each assistant
// message with tool calls stand the results of its calls, one for each, in the order of
// the calls, and nowhere else is there a result. All other messages keep their order.
//
//   - Which call a result answers is the rule of ToolResult.call_id.
//   - A call without a result, open or not, gets one that says "no result". So does one whose
//     result came when others had spoken since.
//   - Such a late result, and one without a call, becomes a user message that tells it in
//     words where it stands: the model has been told "no result" by then, and is to answer
//     what is new at the end.
//   - A call whose id is empty, or has been used before, gets another, and so does its
//     result. Ids are told apart from the oldest on, so that more messages at the end
//     change nothing ahead of them, and a provider's prompt cache stays good.
//
// The messages are not changed. Those of the result that needed no change are the same
// ones, so nobody may change those either.
func Answered(messages []*parleyv1.Message) []*parleyv1.Message {
	calls, taken := pair(messages)
	answered := make([]*parleyv1.Message, 0, len(messages))
	for i, message := range messages {
		switch {
		case taken[i]: // stands behind its call
		case message.GetRole() == parleyv1.Role_ROLE_TOOL:
			answered = append(answered, told(message))
		default:
			answered = append(answered, withIDs(message, calls[i]))
			for _, call := range calls[i] {
				answered = append(answered, call.answer())
			}
		}
	}
	return answered
}

// call is a tool call on its way to its result.
type call struct {
	*parleyv1.ToolCall
	id     string            // by which the model knows it; most often its own
	result *parleyv1.Message // nil: nobody has answered
}

// pair finds the calls of each message, with their results, and which messages are those
// results.
func pair(messages []*parleyv1.Message) (calls [][]*call, taken []bool) {
	calls, taken = make([][]*call, len(messages)), make([]bool, len(messages))
	ids := ids{used: map[string]bool{"": true}, copies: make(map[string]int)}
	open := make(map[string][]*call) // by their own id, each of one message; the first one gets the next result
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

// ids gives out ids of calls, each once.
type ids struct {
	used   map[string]bool
	copies map[string]int // how often each was wanted again
}

// next is the id if it is free, else another made of it.
func (s ids) next(id string) string {
	for wanted := id; s.used[id]; {
		s.copies[wanted]++
		id = wanted + "_" + strconv.Itoa(s.copies[wanted]+1)
	}
	s.used[id] = true
	return id
}

// withIDs is the message with the ids that its calls were given.
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

// answer is the message that answers the call.
func (c *call) answer() *parleyv1.Message {
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

// told is a result in words, as a message of the user's. What the message carries
// besides stays with it.
func told(message *parleyv1.Message) *parleyv1.Message {
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

// Text is what a model reads of a message: its content, " [cut off]" if the message is
// INCOMPLETE, and its structured data, each value in the form in which [Blocks] takes
// them from an answer:
//
//	```json type=library_list
//	{"libraries":["preact","solid"]}
//	```
//
// A blank line is ahead of each but the first thing said. Tool calls, results and
// attachments are no part of it. It is empty for a message that has none of these.
func Text(message *parleyv1.Message) string {
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

// JSON is the value as compact JSON with its keys in byte order: the same value has the
// same text always, which protojson does not promise. What JSON lacks is told in a
// string, "NaN"; no value at all is null.
func JSON(value *structpb.Value) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the reader is a program or a model, not a browser
	if err := e.Encode(value.AsInterface()); err != nil {
		return "null" // AsInterface gives nothing that JSON lacks
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
