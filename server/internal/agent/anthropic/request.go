package anthropic

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	roleUser      = "user"
	roleAssistant = "assistant"

	beginning    = "[start of the conversation]"
	emptyMessage = "[empty message]"

	// maxToolName is the limit of the API for the name of a tool.
	maxToolName = 64
)

// messagesRequest is the body of a request.
type messagesRequest struct {
	Model       string    `json:"model"`
	MaxTokens   int       `json:"max_tokens"`
	Temperature *float64  `json:"temperature,omitempty"`
	Thinking    *thinking `json:"thinking,omitempty"`
	System      []block   `json:"system,omitempty"`
	Tools       []tool    `json:"tools,omitempty"`
	Messages    []turn    `json:"messages"`
	Stream      bool      `json:"stream"`
}

// thinking asks for thinking, with a part of max_tokens.
type thinking struct {
	Type         string `json:"type"`
	BudgetTokens int    `json:"budget_tokens"`
}

// tool is a tool that the model may call.
type tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
}

// turn is a message of the API: the blocks of adjacent messages of one role.
type turn struct {
	Role    string  `json:"role"` // roleUser or roleAssistant.
	Content []block `json:"content"`
}

// block contains the fields of all types of blocks: text, image, document, tool_use and tool_result.
type block struct {
	Type         string          `json:"type"`
	Text         string          `json:"text,omitempty"`
	Source       *source         `json:"source,omitempty"`      // image, document
	ID           string          `json:"id,omitempty"`          // tool_use
	Name         string          `json:"name,omitempty"`        // tool_use
	Input        json.RawMessage `json:"input,omitempty"`       // tool_use
	ToolUseID    string          `json:"tool_use_id,omitempty"` // tool_result
	Content      []block         `json:"content,omitempty"`     // tool_result
	IsError      bool            `json:"is_error,omitempty"`    // tool_result
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
	// raw is the complete block as the API sent it; nil if it did not. Of the other fields, only Type is set then.
	raw json.RawMessage
}

// MarshalJSON encodes the block. It does not escape HTML, like [agent.Provider.Stream].
func (b block) MarshalJSON() ([]byte, error) {
	if b.raw != nil {
		return b.raw, nil
	}
	type plain block
	var encoded bytes.Buffer
	e := json.NewEncoder(&encoded)
	e.SetEscapeHTML(false)
	err := e.Encode(plain(b))
	return encoded.Bytes(), err
}

// source is the URL of an image or a document.
type source struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

// cacheControl marks the end of a prefix of the request for the prompt cache.
type cacheControl struct {
	Type string `json:"type"`
}

// makeBody returns a function that makes the body of the request, as the package comment describes it. With native
// forms, it has the blocks of earlier answers as the API sent them.
func (a *Agent) makeBody(request *parleyv1.RespondRequest) agent.MakeBody {
	history := agent.Answered(request.GetMessages())
	return func(native bool) (body any, hasNative bool) {
		messages, hasNative := turns(history, native)
		return a.body(request, messages), hasNative
	}
}

// body returns a body with the messages.
func (a *Agent) body(request *parleyv1.RespondRequest, messages []turn) *messagesRequest {
	r := &messagesRequest{
		Model:       a.config.Model,
		MaxTokens:   maxTokens(a.config.MaxOutputTokens),
		Temperature: a.config.Temperature,
		Tools:       slices.Clone(a.tools), // The marks of the prompt cache differ between requests.
		Messages:    messages,
		Stream:      true,
	}
	if n := a.config.ThinkingTokens; n > 0 && mayThink(messages) {
		r.Thinking, r.Temperature = &thinking{Type: "enabled", BudgetTokens: n}, nil
	}
	if prompt := request.GetSystemPrompt(); !isBlank(prompt) {
		r.System = []block{textBlock(prompt)}
	}
	if request.GetCacheStable() {
		mark(r)
	}
	return r
}

// mayThink reports whether the API accepts a request for thinking. If the last message has results of tools, the answer
// with their calls must begin with its thinking. It does not if it is sent without its native form.
func mayThink(messages []turn) bool {
	last := len(messages) - 1
	if last < 1 || !slices.ContainsFunc(messages[last].Content, func(b block) bool { return b.Type == "tool_result" }) {
		return true
	}
	first := messages[last-1].Content[0].Type
	return first == blockThinking || first == blockRedactedThinking
}

// newTools returns the tools of the request. Their schemas are encoded once.
func newTools(configured []agent.Tool) ([]tool, error) {
	var tools []tool
	for _, t := range configured {
		schema := json.RawMessage(`{"type":"object","properties":{}}`)
		if t.Parameters != nil {
			var err error
			if schema, err = json.Marshal(t.Parameters); err != nil {
				return nil, fmt.Errorf("tools: %s: %w", t.Name, err)
			}
		}
		tools = append(tools, tool{Name: t.Name, Description: t.Description, InputSchema: schema})
	}
	return tools, nil
}

// mark sets at most three marks for the prompt cache.
func mark(r *messagesRequest) {
	end := &cacheControl{Type: "ephemeral"}
	if len(r.System) > 0 {
		r.System[0].CacheControl = end
	} else if n := len(r.Tools); n > 0 {
		r.Tools[n-1].CacheControl = end
	}
	left := 2
	for _, turn := range slices.Backward(r.Messages) {
		if turn.Role == roleUser && left > 0 {
			turn.Content[len(turn.Content)-1].CacheControl = end
			left--
		}
	}
}

// turns returns messages with alternating roles, beginning with the user. Each has content. If native is set, the
// blocks of earlier answers are as the API sent them, where that is known; hasNative reports whether any are.
func turns(history []*parleyv1.Message, native bool) (turns []turn, hasNative bool) {
	turns = []turn{}
	for _, message := range history {
		var blocks []block
		role := roleAssistant // Only answers have blocks of their own.
		if native {
			blocks = ownBlocks(message)
		}
		if blocks != nil {
			hasNative = true
		} else {
			role, blocks = blocksOf(message)
		}
		if len(blocks) == 0 {
			continue
		}
		if len(turns) == 0 && role == roleAssistant {
			turns = append(turns, turn{roleUser, []block{textBlock(beginning)}})
		}
		if last := len(turns) - 1; last >= 0 && turns[last].Role == role {
			turns[last].Content = append(turns[last].Content, blocks...)
		} else {
			turns = append(turns, turn{role, blocks})
		}
	}
	return turns, hasNative
}

// blocksOf returns the role and the blocks of a message.
func blocksOf(message *parleyv1.Message) (role string, blocks []block) {
	switch message.GetRole() {
	case parleyv1.Role_ROLE_ASSISTANT:
		return roleAssistant, assistantBlocks(message)
	case parleyv1.Role_ROLE_TOOL:
		return roleUser, []block{toolResult(message)}
	}
	return roleUser, userBlocks(message)
}

func textBlock(text string) block { return block{Type: "text", Text: text} }

func assistantBlocks(message *parleyv1.Message) []block {
	var blocks []block
	if text := agent.Text(message); !isBlank(text) {
		blocks = append(blocks, textBlock(text))
	}
	for _, attachment := range message.GetAttachments() {
		blocks = append(blocks, textBlock(attachmentText(attachment))) // The API allows images only in user messages.
	}
	for _, call := range message.GetToolCalls() {
		blocks = append(blocks, block{
			Type: "tool_use", ID: toolID(call.GetId()), Name: toolName(call.GetName()), Input: input(call.GetArguments()),
		})
	}
	return blocks
}

func userBlocks(message *parleyv1.Message) []block {
	var blocks []block
	isSystem := message.GetRole() == parleyv1.Role_ROLE_SYSTEM
	if text := agent.Text(message); !isBlank(text) {
		if isSystem {
			text = "<system_message>\n" + text + "\n</system_message>"
		}
		blocks = append(blocks, textBlock(text))
	}
	for _, attachment := range message.GetAttachments() {
		blocks = append(blocks, attachmentBlock(attachment))
	}
	if len(blocks) == 0 && !isSystem {
		blocks = append(blocks, textBlock(emptyMessage))
	}
	return blocks
}

// toolResult returns a result with all other content of its message. The result of a failure must
// contain text, and nothing else.
func toolResult(message *parleyv1.Message) block {
	result := message.GetToolResult()
	b := block{Type: "tool_result", ToolUseID: toolID(result.GetCallId()), IsError: result.GetIsError()}
	for _, text := range []string{result.GetContent(), agent.Text(message)} {
		if !isBlank(text) {
			b.Content = append(b.Content, textBlock(text))
		}
	}
	for _, attachment := range message.GetAttachments() {
		if b.IsError {
			b.Content = append(b.Content, textBlock(attachmentText(attachment)))
		} else {
			b.Content = append(b.Content, attachmentBlock(attachment))
		}
	}
	if b.IsError && len(b.Content) == 0 {
		b.Content = append(b.Content, textBlock("failed"))
	}
	return b
}

// attachmentBlock returns an image or a document by its URL, or a text for any other attachment,
// for which the API would refuse the complete conversation.
func attachmentBlock(attachment *parleyv1.Attachment) block {
	switch {
	case agent.IsImage(attachment):
		return block{Type: "image", Source: &source{Type: "url", URL: attachment.GetUri()}}
	case agent.IsPDF(attachment):
		return block{Type: "document", Source: &source{Type: "url", URL: attachment.GetUri()}}
	default:
		return textBlock(attachmentText(attachment))
	}
}

func attachmentText(attachment *parleyv1.Attachment) string {
	words := []string{"attachment"}
	for _, word := range []string{attachment.GetMediaType(), attachment.GetFilename()} {
		if word != "" {
			words = append(words, word)
		}
	}
	return "[" + strings.Join(words, " ") + "]: " + attachment.GetUri()
}

// input returns the arguments as a JSON object, which the API requires.
func input(arguments string) json.RawMessage {
	if isBlank(arguments) {
		return json.RawMessage("{}")
	}
	if b := bytes.TrimSpace([]byte(arguments)); b[0] == '{' && json.Valid(b) {
		return b
	}
	b, err := json.Marshal(map[string]string{"invalid_arguments": arguments})
	if err != nil {
		return json.RawMessage("{}") // It cannot fail: the value contains only strings.
	}
	return b
}

// toolID returns the id if the API allows its characters, otherwise an id that is derived from it.
func toolID(id string) string {
	if id != "" && !strings.ContainsFunc(id, isNoWord) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "call_" + hex.EncodeToString(sum[:16])
}

// toolName returns the name with the characters and the length that the API allows.
func toolName(name string) string {
	name = strings.Map(func(r rune) rune {
		if isNoWord(r) {
			return '_'
		}
		return r
	}, name)
	if name == "" {
		return "unknown"
	}
	return name[:min(len(name), maxToolName)]
}

// isWord reports whether the API allows the character in ids and names.
func isWord(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
}

func isNoWord(r rune) bool { return !isWord(r) }

// isBlank reports whether the API treats the text as empty.
func isBlank(text string) bool { return strings.TrimSpace(text) == "" }
