package openai

import (
	"encoding/json"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// chatRequest is the body of a request.
type chatRequest struct {
	Model               string         `json:"model"`
	Messages            []any          `json:"messages"` // A chatMessage, or the JSON of one.
	Tools               []functionTool `json:"tools,omitempty"`
	Temperature         *float64       `json:"temperature,omitempty"`
	ReasoningEffort     string         `json:"reasoning_effort,omitempty"`
	MaxTokens           int            `json:"max_tokens,omitempty"`
	MaxCompletionTokens int            `json:"max_completion_tokens,omitempty"`
	Stream              bool           `json:"stream"`
	StreamOptions       streamOptions  `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// chatMessage is a message of any role.
type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"` // A string, a []contentPart, or nil.
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// contentPart is a text or an image.
type contentPart struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
}

// functionTool is a function that the model may call.
type functionTool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters"`
}

// toolCall is an earlier call of the model.
type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function callFunction `json:"function"`
}

type callFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// makeBody returns a function that makes the body of the request. With native forms, it has earlier answers as the API
// sent them.
func (a *Agent) makeBody(request *parleyv1.RespondRequest) agent.MakeBody {
	return func(native bool) (body any, hasNative bool) {
		all, hasNative := messages(request, native)
		return a.body(all), hasNative
	}
}

// body returns a body with the messages.
func (a *Agent) body(messages []any) *chatRequest {
	r := &chatRequest{
		Model:         a.config.Model,
		Messages:      messages,
		Tools:         a.tools,
		Temperature:   a.config.Temperature,
		Stream:        true,
		StreamOptions: streamOptions{IncludeUsage: true},
	}
	if effort := a.config.ReasoningEffort; effort != "" {
		r.ReasoningEffort, r.Temperature = effort, nil // Reasoning models refuse a temperature.
	}
	// OpenAI's newer models refuse max_tokens, and many other servers support only that.
	if host := a.provider.Base.Hostname(); host == "openai.com" || strings.HasSuffix(host, ".openai.com") ||
		strings.HasSuffix(host, ".openai.azure.com") {
		r.MaxCompletionTokens = a.config.MaxOutputTokens
	} else {
		r.MaxTokens = a.config.MaxOutputTokens
	}
	return r
}

// tools returns the functions that the model may call.
func tools(configured []agent.Tool) []functionTool {
	var tools []functionTool
	for _, t := range configured {
		parameters := t.Parameters
		if parameters == nil {
			// The API allows to omit the parameters, but the chat templates of some models require them.
			parameters = map[string]any{"type": "object", "properties": map[string]any{}}
		}
		tools = append(tools, functionTool{
			Type: "function", Function: function{Name: t.Name, Description: t.Description, Parameters: parameters},
		})
	}
	return tools
}

// messages returns the system prompt and the conversation. If native is set, earlier answers are as the API sent them,
// where that is known; hasNative reports whether any are.
func messages(request *parleyv1.RespondRequest, native bool) (messages []any, hasNative bool) {
	messages = []any{}
	if prompt := request.GetSystemPrompt(); prompt != "" {
		messages = append(messages, chatMessage{Role: "system", Content: prompt})
	}
	for _, message := range agent.Answered(request.GetMessages()) {
		if native {
			if own := ownMessage(message); own != nil {
				messages, hasNative = append(messages, own), true
				continue
			}
		}
		m := newMessage(message)
		if m.Role == "assistant" && m.Content == "" && len(m.ToolCalls) == 0 {
			// It has only reasoning, possibly because it was cut off, or a native form of another kind. Some servers refuse
			// an empty answer.
			continue
		}
		messages = append(messages, m)
	}
	return messages, hasNative
}

func newMessage(message *parleyv1.Message) chatMessage {
	switch message.GetRole() {
	case parleyv1.Role_ROLE_ASSISTANT:
		return assistantMessage(message)
	case parleyv1.Role_ROLE_SYSTEM:
		return chatMessage{Role: "system", Content: text(message, isAny)}
	case parleyv1.Role_ROLE_TOOL:
		return toolMessage(message)
	default:
		return userMessage(message)
	}
}

func userMessage(message *parleyv1.Message) chatMessage {
	content := text(message, func(a *parleyv1.Attachment) bool { return !agent.IsImage(a) })
	var parts []contentPart
	for _, attachment := range message.GetAttachments() {
		if agent.IsImage(attachment) {
			parts = append(parts, contentPart{Type: "image_url", ImageURL: &imageURL{URL: attachment.GetUri()}})
		}
	}
	if parts == nil {
		return chatMessage{Role: "user", Content: content} // Many servers do not support parts.
	}
	if content != "" {
		parts = append([]contentPart{{Type: "text", Text: content}}, parts...)
	}
	return chatMessage{Role: "user", Content: parts}
}

func assistantMessage(message *parleyv1.Message) chatMessage {
	assistant := chatMessage{Role: "assistant"}
	for _, call := range message.GetToolCalls() {
		assistant.ToolCalls = append(assistant.ToolCalls, toolCall{
			ID: call.GetId(), Type: "function",
			Function: callFunction{Name: call.GetName(), Arguments: arguments(call.GetArguments())},
		})
	}
	// The API requires that empty text is omitted if there are calls.
	if content := text(message, isAny); content != "" || assistant.ToolCalls == nil {
		assistant.Content = content
	}
	return assistant
}

// arguments returns the arguments of an earlier call. Some servers refuse the complete conversation if
// they are not JSON, for example those of a call that was cut off. Such text is wrapped in an
// object.
func arguments(written string) string {
	switch {
	case json.Valid([]byte(written)):
		return written
	case written == "":
		return "{}"
	}
	wrapped, err := json.Marshal(map[string]string{"not_json": written})
	if err != nil {
		return "{}" // It cannot fail: the value contains only strings.
	}
	return string(wrapped)
}

func toolMessage(message *parleyv1.Message) chatMessage {
	result := message.GetToolResult()
	content := result.GetContent()
	if result.GetIsError() {
		content = "error: " + content
	}
	return chatMessage{Role: "tool", Content: joined(content, text(message, isAny)), ToolCallID: result.GetCallId()}
}

// text returns the text of a message for the model, with a line for each attachment that wanted
// selects.
func text(message *parleyv1.Message, wanted func(*parleyv1.Attachment) bool) string {
	var lines []string
	for _, attachment := range message.GetAttachments() {
		if wanted(attachment) {
			words := strings.TrimSpace("attachment " + attachment.GetMediaType())
			lines = append(lines, "["+words+"]: "+attachment.GetUri())
		}
	}
	return joined(agent.Text(message), strings.Join(lines, "\n"))
}

// joined returns both texts with a blank line between them, or the one that is not empty.
func joined(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + "\n\n" + second
}

func isAny(*parleyv1.Attachment) bool { return true }
