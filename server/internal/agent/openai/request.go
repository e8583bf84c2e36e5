package openai

import (
	"encoding/json"
	"strings"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// params returns the body of the request.
func (a *Agent) params(request *parleyv1.RespondRequest) sdk.ChatCompletionNewParams {
	params := sdk.ChatCompletionNewParams{
		Model:         a.config.Model,
		Messages:      messages(request),
		Tools:         a.tools,
		StreamOptions: sdk.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
	}
	if a.config.Temperature != nil {
		params.Temperature = param.NewOpt(*a.config.Temperature)
	}
	if n := int64(a.config.MaxOutputTokens); n > 0 {
		// OpenAI's newer models refuse max_tokens, and many other servers support only that.
		if host := a.provider.Base.Hostname(); host == "openai.com" || strings.HasSuffix(host, ".openai.com") || strings.HasSuffix(host, ".openai.azure.com") {
			params.MaxCompletionTokens = param.NewOpt(n)
		} else {
			params.MaxTokens = param.NewOpt(n)
		}
	}
	return params
}

// tools returns the functions that the model may call.
func tools(configured []agent.Tool) []sdk.ChatCompletionToolUnionParam {
	var tools []sdk.ChatCompletionToolUnionParam
	for _, tool := range configured {
		function := sdk.FunctionDefinitionParam{Name: tool.Name, Parameters: tool.Parameters}
		if tool.Description != "" {
			function.Description = param.NewOpt(tool.Description)
		}
		if tool.Parameters == nil {
			// The API allows to omit the parameters, but the chat templates of some models require them.
			function.Parameters = sdk.FunctionParameters{"type": "object", "properties": map[string]any{}}
		}
		tools = append(tools, sdk.ChatCompletionFunctionTool(function))
	}
	return tools
}

// messages returns the system prompt and the conversation.
func messages(request *parleyv1.RespondRequest) []sdk.ChatCompletionMessageParamUnion {
	var messages []sdk.ChatCompletionMessageParamUnion
	if prompt := request.GetSystemPrompt(); prompt != "" {
		messages = append(messages, sdk.SystemMessage(prompt))
	}
	for _, message := range agent.Answered(request.GetMessages()) {
		messages = append(messages, toParam(message))
	}
	return messages
}

func toParam(message *parleyv1.Message) sdk.ChatCompletionMessageParamUnion {
	switch message.GetRole() {
	case parleyv1.Role_ROLE_ASSISTANT:
		return assistantParam(message)
	case parleyv1.Role_ROLE_SYSTEM:
		return sdk.SystemMessage(text(message, isAny))
	case parleyv1.Role_ROLE_TOOL:
		return toolParam(message)
	default:
		return userParam(message)
	}
}

func userParam(message *parleyv1.Message) sdk.ChatCompletionMessageParamUnion {
	content := text(message, func(a *parleyv1.Attachment) bool { return !agent.IsImage(a) })
	var parts []sdk.ChatCompletionContentPartUnionParam
	for _, attachment := range message.GetAttachments() {
		if agent.IsImage(attachment) {
			parts = append(parts, sdk.ImageContentPart(sdk.ChatCompletionContentPartImageImageURLParam{URL: attachment.GetUri()}))
		}
	}
	if parts == nil {
		return sdk.UserMessage(content) // Many servers do not support parts.
	}
	if content != "" {
		parts = append([]sdk.ChatCompletionContentPartUnionParam{sdk.TextContentPart(content)}, parts...)
	}
	return sdk.UserMessage(parts)
}

func assistantParam(message *parleyv1.Message) sdk.ChatCompletionMessageParamUnion {
	var assistant sdk.ChatCompletionAssistantMessageParam
	for _, call := range message.GetToolCalls() {
		assistant.ToolCalls = append(assistant.ToolCalls, sdk.ChatCompletionMessageToolCallUnionParam{
			OfFunction: &sdk.ChatCompletionMessageFunctionToolCallParam{
				ID: call.GetId(),
				Function: sdk.ChatCompletionMessageFunctionToolCallFunctionParam{
					Name: call.GetName(), Arguments: arguments(call.GetArguments()),
				},
			},
		})
	}
	// The API requires that empty text is omitted if there are calls.
	if content := text(message, isAny); content != "" || assistant.ToolCalls == nil {
		assistant.Content.OfString = param.NewOpt(content)
	}
	return sdk.ChatCompletionMessageParamUnion{OfAssistant: &assistant}
}

// arguments returns the arguments of an earlier call. Some servers refuse the whole conversation if
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

func toolParam(message *parleyv1.Message) sdk.ChatCompletionMessageParamUnion {
	result := message.GetToolResult()
	content := result.GetContent()
	if result.GetIsError() {
		content = "error: " + content
	}
	return sdk.ToolMessage(joined(content, text(message, isAny)), result.GetCallId())
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
