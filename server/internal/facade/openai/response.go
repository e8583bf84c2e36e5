package openai

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// response is a response in the form of OpenAI. Its fields that are null or constant are those of the model, which is
// the agent's business here.
type response struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	CreatedAt          int64              `json:"created_at"`
	Status             string             `json:"status"`
	Background         bool               `json:"background"`
	CompletedAt        *int64             `json:"completed_at"`
	Conversation       *idObject          `json:"conversation"`
	Error              *responseError     `json:"error"`
	IncompleteDetails  *incompleteDetails `json:"incomplete_details"`
	Instructions       *string            `json:"instructions"`
	MaxOutputTokens    *int               `json:"max_output_tokens"`
	Metadata           map[string]string  `json:"metadata"`
	Model              string             `json:"model"`
	Output             []outputItem       `json:"output"`
	ParallelToolCalls  bool               `json:"parallel_tool_calls"`
	PreviousResponseID *string            `json:"previous_response_id"`
	Store              bool               `json:"store"`
	Temperature        *float64           `json:"temperature"`
	Text               json.RawMessage    `json:"text"`
	ToolChoice         string             `json:"tool_choice"`
	Tools              []any              `json:"tools"`
	TopP               *float64           `json:"top_p"`
	Truncation         string             `json:"truncation"`
	Usage              *usage             `json:"usage"`
}

type idObject struct {
	ID string `json:"id"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incompleteDetails struct {
	Reason string `json:"reason"`
}

type usage struct {
	InputTokens        int64 `json:"input_tokens"`
	InputTokensDetails struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens        int64 `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int64 `json:"total_tokens"`
}

// States of a response.
const (
	inProgress = "in_progress"
	completed  = "completed"
	failed     = "failed"
	cancelled  = "cancelled"
	incomplete = "incomplete"
)

// newResponse returns a response that has begun. metadata is that of its input.
func newResponse(ref turnRef, agent string, metadata map[string]string) *response {
	r := &response{
		ID: ref.responseID(), Object: "response", CreatedAt: startTime(ref.turn), Status: inProgress,
		Conversation: &idObject{conversationID(ref.conversation)}, Metadata: make(map[string]string), Model: agent,
		Output: []outputItem{}, ParallelToolCalls: true, Store: true,
		Text: json.RawMessage(`{"format":{"type":"text"}}`), ToolChoice: "auto", Tools: []any{}, Truncation: "auto",
	}
	for key, value := range metadata {
		if !strings.HasPrefix(key, ownMetadata) {
			r.Metadata[key] = value
		}
	}
	r.Background = metadata[backgroundKey] != ""
	if previous := metadata[previousKey]; previous != "" {
		r.PreviousResponseID = &previous
	}
	if instructions, ok := metadata[instructionsKey]; ok {
		r.Instructions = &instructions
	}
	return r
}

// startTime returns the time in the id of a turn, in seconds, or 0 if there is none.
func startTime(turn string) int64 {
	id, err := uuid.Parse(turn)
	if err != nil || id.Version() != 7 {
		return 0
	}
	sec, _ := id.Time().UnixTime()
	return sec
}

// finish sets what the end of a turn says. messages are those of the answer.
func (r *response) finish(t *parleyv1.Turn, messages []*parleyv1.Message) {
	r.CreatedAt = t.GetCreateTime().AsTime().Unix()
	r.Model = cmp.Or(t.GetAgent(), r.Model)
	if t.GetFinishTime() == nil {
		return
	}
	r.Output = outputOf(t.GetId(), messages)
	r.Usage = usageOf(messages)
	switch t.GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		r.Status = completed
		end := t.GetFinishTime().AsTime().Truncate(time.Second).Unix()
		r.CompletedAt = &end
		reason := map[string]string{
			"length": "max_output_tokens", "max_tokens": "max_output_tokens", "content_filter": "content_filter",
		}[finishReason(messages)]
		if reason != "" {
			r.Status, r.CompletedAt, r.IncompleteDetails = incomplete, nil, &incompleteDetails{reason}
		}
	case parleyv1.TurnState_TURN_STATE_CANCELLED:
		r.Status = cancelled
	default:
		r.Status = failed
		r.Error = &responseError{"server_error", t.GetError().GetMessage()}
	}
}

func finishReason(messages []*parleyv1.Message) string {
	if len(messages) == 0 {
		return ""
	}
	return messages[len(messages)-1].GetFinishReason()
}

// usageOf returns the usage of all messages together, or nil if no model reported any.
func usageOf(messages []*parleyv1.Message) *usage {
	var sum *usage
	for _, m := range messages {
		u := m.GetUsage()
		if u == nil {
			continue
		}
		if sum == nil {
			sum = new(usage)
		}
		sum.InputTokens += int64(u.GetInputTokens())
		sum.OutputTokens += int64(u.GetOutputTokens())
		sum.InputTokensDetails.CachedTokens += int64(u.GetCachedInputTokens())
		sum.OutputTokensDetails.ReasoningTokens += int64(u.GetReasoningTokens())
		sum.TotalTokens += int64(u.GetInputTokens()) + int64(u.GetOutputTokens())
	}
	return sum
}

// outputItem is an item of the output of a response: a text or a call.
type outputItem struct {
	storedItem

	text string // Of a text.
	call *parleyv1.ToolCall
}

// outputOf returns the output of a turn: the texts of its messages, and then the calls that wait for their results.
// Calls that the agent ran itself are not among them, so that no client runs them, too.
func outputOf(turn string, messages []*parleyv1.Message) []outputItem {
	output := []outputItem{}
	add := func(it outputItem, m *parleyv1.Message, items int) {
		it.sequence, it.shared = m.GetSequence(), items > 1
		output = append(output, it)
	}
	for _, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT && m.GetContent() != "" {
			it := newTextItem(outputID(messagePrefix, turn, len(output)), m.GetContent(), statusOf(m))
			add(it, m, 1+len(m.GetToolCalls()))
		}
	}
	for _, open := range openCalls(messages) {
		it := newCallItem(outputID(callPrefix, turn, len(output)), open.call, completed)
		add(it, open.message, 1+len(open.message.GetToolCalls()))
	}
	return output
}

// newTextItem returns a text of the output.
func newTextItem(id, text, status string) outputItem {
	content := []any{}
	if text != "" || status != inProgress {
		content = append(content, newTextPart(text))
	}
	return outputItem{text: text, storedItem: storedItem{id: id, object: object{
		{"id", quote(id)},
		{"type", quote("message")},
		{"status", quote(status)},
		{"role", quote("assistant")},
		{"content", toJSON(content)},
	}}}
}

func newTextPart(text string) any { return textPart("assistant", quote(text)) }

// newCallItem returns a call of the output.
func newCallItem(id string, call *parleyv1.ToolCall, status string) outputItem {
	return outputItem{call: call, storedItem: storedItem{id: id, object: object{
		{"id", quote(id)},
		{"type", quote("function_call")},
		{"status", quote(status)},
		{"call_id", quote(call.GetId())},
		{"name", quote(call.GetName())},
		{"arguments", quote(call.GetArguments())},
	}}}
}

type openCall struct {
	call    *parleyv1.ToolCall
	message *parleyv1.Message
}

// openCalls returns the calls of the messages of an answer that have no result among them.
func openCalls(messages []*parleyv1.Message) []openCall {
	var open []openCall
	for _, m := range messages {
		for _, call := range m.GetToolCalls() {
			open = append(open, openCall{call, m})
		}
		if m.GetRole() != parleyv1.Role_ROLE_TOOL {
			continue
		}
		for i, o := range open {
			if o.call.GetId() == m.GetToolResult().GetCallId() {
				open = append(open[:i:i], open[i+1:]...)
				break
			}
		}
	}
	return open
}

// inputCount returns how many messages the request of a turn added, from the metadata of its input.
func inputCount(metadata map[string]string) int32 {
	n, err := strconv.ParseInt(metadata[inputCountKey], 10, 32)
	if err != nil || n < 1 || n > maxInput {
		return 1
	}
	return int32(n)
}
