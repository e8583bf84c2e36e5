package anthropic

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	beginning    = "[start of the conversation]"
	emptyMessage = "[empty message]"

	// maxToolName is the limit of the API for the name of a tool.
	maxToolName = 64
)

// params returns the body of the request, as the package comment describes it.
func (a *Agent) params(request *parleyv1.RespondRequest) sdk.MessageNewParams {
	params := sdk.MessageNewParams{
		Model:     a.config.Model,
		MaxTokens: int64(cmp.Or(a.config.MaxOutputTokens, defaultMaxTokens)),
		Messages:  messages(agent.Answered(request.GetMessages())),
	}
	if a.config.Temperature != nil {
		params.Temperature = sdk.Float(*a.config.Temperature)
	}
	if prompt := request.GetSystemPrompt(); !isBlank(prompt) {
		params.System = []sdk.TextBlockParam{{Text: prompt}}
	}
	for _, tool := range a.tools {
		params.Tools = append(params.Tools, sdk.ToolUnionParam{OfTool: &tool})
	}
	if request.GetCacheStable() {
		mark(&params)
	}
	return params
}

// newTools returns the tools of the request. Their schemas are encoded once: the SDK would order
// the keys differently each time, which would invalidate the prompt cache.
func newTools(configured []agent.Tool) ([]sdk.ToolParam, error) {
	var tools []sdk.ToolParam
	for _, tool := range configured {
		schema := []byte(`{"type":"object","properties":{}}`)
		if tool.Parameters != nil {
			var err error
			if schema, err = json.Marshal(tool.Parameters); err != nil {
				return nil, fmt.Errorf("tools: %s: %w", tool.Name, err)
			}
		}
		p := sdk.ToolParam{Name: tool.Name, InputSchema: param.Override[sdk.ToolInputSchemaParam](json.RawMessage(schema))}
		if tool.Description != "" {
			p.Description = sdk.String(tool.Description)
		}
		tools = append(tools, p)
	}
	return tools, nil
}

// mark sets at most three marks for the prompt cache.
func mark(params *sdk.MessageNewParams) {
	cacheControl := sdk.NewCacheControlEphemeralParam()
	if len(params.System) > 0 {
		params.System[0].CacheControl = cacheControl
	} else if n := len(params.Tools); n > 0 {
		params.Tools[n-1].OfTool.CacheControl = cacheControl
	}
	left := 2
	for i := len(params.Messages) - 1; i >= 0 && left > 0; i-- {
		if m := params.Messages[i]; m.Role == sdk.MessageParamRoleUser {
			*m.Content[len(m.Content)-1].GetCacheControl() = cacheControl
			left--
		}
	}
}

// messages returns messages with alternating roles, beginning with the user. Each message has
// content.
func messages(history []*parleyv1.Message) []sdk.MessageParam {
	var turns []sdk.MessageParam
	for _, message := range history {
		role, blocks := blocksOf(message)
		if len(blocks) == 0 {
			continue
		}
		if len(turns) == 0 && role == sdk.MessageParamRoleAssistant {
			turns = append(turns, sdk.NewUserMessage(sdk.NewTextBlock(beginning)))
		}
		if last := len(turns) - 1; last >= 0 && turns[last].Role == role {
			turns[last].Content = append(turns[last].Content, blocks...)
		} else {
			turns = append(turns, sdk.MessageParam{Role: role, Content: blocks})
		}
	}
	return turns
}

// blocksOf returns the role and the blocks of a message.
func blocksOf(message *parleyv1.Message) (sdk.MessageParamRole, []sdk.ContentBlockParamUnion) {
	switch message.GetRole() {
	case parleyv1.Role_ROLE_ASSISTANT:
		return sdk.MessageParamRoleAssistant, assistantBlocks(message)
	case parleyv1.Role_ROLE_TOOL:
		return sdk.MessageParamRoleUser, []sdk.ContentBlockParamUnion{toolResult(message)}
	}
	return sdk.MessageParamRoleUser, userBlocks(message)
}

func assistantBlocks(message *parleyv1.Message) []sdk.ContentBlockParamUnion {
	var blocks []sdk.ContentBlockParamUnion
	if text := agent.Text(message); !isBlank(text) {
		blocks = append(blocks, sdk.NewTextBlock(text))
	}
	for _, attachment := range message.GetAttachments() {
		blocks = append(blocks, sdk.NewTextBlock(attachmentText(attachment))) // The API allows images only in user messages.
	}
	for _, call := range message.GetToolCalls() {
		blocks = append(blocks, sdk.NewToolUseBlock(toolID(call.GetId()), input(call.GetArguments()), toolName(call.GetName())))
	}
	return blocks
}

func userBlocks(message *parleyv1.Message) []sdk.ContentBlockParamUnion {
	var blocks []sdk.ContentBlockParamUnion
	isSystem := message.GetRole() == parleyv1.Role_ROLE_SYSTEM
	if text := agent.Text(message); !isBlank(text) {
		if isSystem {
			text = "<system_message>\n" + text + "\n</system_message>"
		}
		blocks = append(blocks, sdk.NewTextBlock(text))
	}
	for _, attachment := range message.GetAttachments() {
		blocks = append(blocks, attachmentBlock(attachment))
	}
	if len(blocks) == 0 && !isSystem {
		blocks = append(blocks, sdk.NewTextBlock(emptyMessage))
	}
	return blocks
}

// toolResult returns a result with all other content of its message. The result of a failure must
// contain text, and nothing else.
func toolResult(message *parleyv1.Message) sdk.ContentBlockParamUnion {
	result := message.GetToolResult()
	block := sdk.ToolResultBlockParam{ToolUseID: toolID(result.GetCallId())}
	add := func(b sdk.ContentBlockParamUnion) {
		block.Content = append(block.Content, sdk.ToolResultBlockParamContentUnion{OfText: b.OfText, OfImage: b.OfImage, OfDocument: b.OfDocument})
	}
	for _, text := range []string{result.GetContent(), agent.Text(message)} {
		if !isBlank(text) {
			add(sdk.NewTextBlock(text))
		}
	}
	for _, attachment := range message.GetAttachments() {
		if result.GetIsError() {
			add(sdk.NewTextBlock(attachmentText(attachment)))
		} else {
			add(attachmentBlock(attachment))
		}
	}
	if result.GetIsError() {
		block.IsError = sdk.Bool(true)
		if len(block.Content) == 0 {
			add(sdk.NewTextBlock("failed"))
		}
	}
	return sdk.ContentBlockParamUnion{OfToolResult: &block}
}

// attachmentBlock returns an image or a document by its URL, or a text for any other attachment,
// for which the API would refuse the whole conversation.
func attachmentBlock(attachment *parleyv1.Attachment) sdk.ContentBlockParamUnion {
	switch {
	case agent.IsImage(attachment):
		return sdk.NewImageBlock(sdk.URLImageSourceParam{URL: attachment.GetUri()})
	case agent.IsPDF(attachment):
		return sdk.NewDocumentBlock(sdk.URLPDFSourceParam{URL: attachment.GetUri()})
	default:
		return sdk.NewTextBlock(attachmentText(attachment))
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
