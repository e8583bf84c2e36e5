package command

import (
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// input returns the input of the program for the request, as the package comment describes it.
func input(request *parleyv1.RespondRequest) string {
	var t transcript
	if prompt := request.GetSystemPrompt(); prompt != "" {
		t.block(prompt, "SYSTEM")
	}
	for _, message := range request.GetMessages() {
		if !agent.IsEmptyAnswer(message) {
			t.message(message)
		}
	}
	t.text.WriteByte('\n')
	return t.text.String()
}

// transcript collects the blocks of the input.
type transcript struct {
	text strings.Builder
	// tools contains the tool of each call so far, for results that do not name theirs.
	tools map[string]string
}

// block adds [HEAD]: content. The words of the head are separated by spaces; empty words are
// omitted. Line feeds at the end of content are omitted too, because many programs print them and a
// blank line separates blocks.
func (t *transcript) block(content string, head ...string) {
	if t.text.Len() > 0 {
		t.text.WriteString("\n\n")
	}
	t.text.WriteByte('[')
	for i, word := range head {
		if i > 0 && word != "" {
			t.text.WriteByte(' ')
		}
		t.text.WriteString(word)
	}
	t.text.WriteString("]:")
	if content = strings.TrimRight(content, "\n"); content != "" {
		t.text.WriteByte(' ')
		t.text.WriteString(content)
	}
}

// message adds the message's own block and the blocks of its other content.
func (t *transcript) message(message *parleyv1.Message) {
	if message.GetRole() == parleyv1.Role_ROLE_TOOL {
		t.toolResult(message)
	} else if content := text(message, message.GetContent()); content != "" || len(message.GetToolCalls()) == 0 {
		// Without this block, the other content would appear to belong to the previous message. Tool calls are
		// an exception, because only the assistant has them.
		t.block(content, speaker(message.GetRole()))
	}
	for _, data := range message.GetStructuredData() {
		t.block(agent.JSON(data.GetValue()), "STRUCTURED_DATA", data.GetType())
	}
	for _, attachment := range message.GetAttachments() {
		t.block(attachment.GetUri(), "ATTACHMENT", attachment.GetMediaType())
	}
	for _, call := range message.GetToolCalls() {
		if t.tools == nil {
			t.tools = make(map[string]string)
		}
		t.tools[call.GetId()] = call.GetName()
		t.block(call.GetArguments(), "TOOL_CALL", call.GetName(), call.GetId())
	}
}

func (t *transcript) toolResult(message *parleyv1.Message) {
	result := message.GetToolResult()
	name, content := result.GetName(), result.GetContent()
	if name == "" {
		name = t.tools[result.GetCallId()]
	}
	if result.GetIsError() {
		content = "error: " + content
	}
	t.block(text(message, content), "TOOL_RESULT", name, result.GetCallId())
}

// text returns the content, with a mark if the message was cut off.
func text(message *parleyv1.Message, content string) string {
	content = strings.TrimRight(content, "\n")
	if message.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		return content
	}
	return strings.TrimPrefix(content+" [cut off]", " ")
}

func speaker(role parleyv1.Role) string {
	switch role {
	case parleyv1.Role_ROLE_ASSISTANT:
		return "ASSISTANT"
	case parleyv1.Role_ROLE_SYSTEM:
		return "SYSTEM"
	default:
		return "USER"
	}
}
