package adk

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	maxName      = 128 // The limit of the API for names of agents, tools and models, in bytes.
	maxResults   = 64  // Results of tools that become messages of their own.
	maxURI       = 8192
	userAuthor   = "user"
	previewBytes = 2000 // Text of a message whose event is in records.
)

// messages returns an event as messages that people and other agents read. The last one has the event's id and is the
// event; there are others before it if the event has results of several tools.
func messages(event *session.Event) []*parleyv1.Message {
	own := &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, Agent: atMost(event.Author, maxName), Usage: usage(event),
		FinishReason: atMost(string(event.FinishReason), maxName),
	}
	if event.Author == userAuthor {
		own.Role, own.Agent = parleyv1.Role_ROLE_USER, ""
	}
	if event.Interrupted {
		own.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
	}
	var all []*parleyv1.Message
	if event.Content != nil {
		for _, part := range event.Content.Parts {
			if part == nil {
				continue
			}
			if result := toolResult(part.FunctionResponse); result != nil && len(all) < maxResults {
				all = append(all, &parleyv1.Message{
					Role: parleyv1.Role_ROLE_TOOL, Agent: own.GetAgent(), ToolResult: result,
				})
				continue
			}
			addPart(own, part)
		}
	}
	if own.GetContent() == "" {
		own.Content = text(event.ErrorMessage)
	}
	if len(all) == 0 || own.GetContent() != "" || len(own.GetToolCalls()) > 0 {
		all = append(all, own)
	}
	last := all[len(all)-1]
	last.Id = atMost(event.ID, maxIDBytes)
	return all
}

// addPart adds a part of an event to a message.
func addPart(to *parleyv1.Message, part *genai.Part) {
	switch {
	case part.Thought:
		to.Reasoning += text(part.Text)
	case part.FunctionCall != nil:
		if call := toolCall(part.FunctionCall); call != nil && to.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			to.ToolCalls = append(to.ToolCalls, call)
			return
		}
		to.Content += fmt.Sprintf("[call of %s]", text(part.FunctionCall.Name))
	case part.FunctionResponse != nil:
		to.Content += fmt.Sprintf("[result of %s]", text(part.FunctionResponse.Name))
	case part.FileData != nil && part.FileData.FileURI != "" && len(text(part.FileData.FileURI)) <= maxURI:
		to.Attachments = append(to.Attachments, &parleyv1.Attachment{
			Uri: text(part.FileData.FileURI), MediaType: atMost(part.FileData.MIMEType, maxName),
		})
	case part.InlineData != nil:
		to.Content += fmt.Sprintf("[%s, %d bytes]", text(part.InlineData.MIMEType), len(part.InlineData.Data))
	case part.ExecutableCode != nil:
		to.Content += text(part.ExecutableCode.Code)
	case part.CodeExecutionResult != nil:
		to.Content += text(part.CodeExecutionResult.Output)
	default:
		to.Content += text(part.Text)
	}
}

// toolCall returns the call of a tool, or nil if the API has no such call.
func toolCall(call *genai.FunctionCall) *parleyv1.ToolCall {
	args, err := marshal(call.Args)
	id, name := atMost(call.ID, maxIDBytes), atMost(call.Name, maxName)
	if err != nil || id == "" || name == "" {
		return nil
	}
	return &parleyv1.ToolCall{Id: id, Name: name, Arguments: string(args)}
}

// toolResult returns the result of a tool, or nil if there is none or the API has no such result.
func toolResult(response *genai.FunctionResponse) *parleyv1.ToolResult {
	if response == nil {
		return nil
	}
	content, err := marshal(response.Response)
	id := atMost(response.ID, maxIDBytes)
	if err != nil || id == "" {
		return nil
	}
	_, failed := response.Response["error"]
	return &parleyv1.ToolResult{
		CallId: id, Name: atMost(response.Name, maxName), Content: string(content), IsError: failed,
	}
}

// usage returns the usage that the model reported with an event, or nil if it reported none.
func usage(event *session.Event) *parleyv1.Usage {
	reported := event.UsageMetadata
	if reported == nil {
		return nil
	}
	return &parleyv1.Usage{
		Model:             atMost(event.ModelVersion, maxName),
		InputTokens:       max(0, reported.PromptTokenCount),
		OutputTokens:      max(0, reported.CandidatesTokenCount) + max(0, reported.ThoughtsTokenCount),
		CachedInputTokens: max(0, reported.CachedContentTokenCount),
		ReasoningTokens:   max(0, reported.ThoughtsTokenCount),
	}
}

// text returns a text as UTF-8, which the API requires.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// atMost returns an id or a name, or "" if it is longer than the API accepts. The event has it in any case.
func atMost(s string, bytes int) string {
	if s = text(s); len(s) > bytes {
		return ""
	}
	return s
}

// withEvent returns the messages of an event, which is the given number of the session, and the writes of the records
// if the event is large. text is its JSON.
func withEvent(
	event *session.Event, text []byte, number int, large bool,
) ([]*parleyv1.Message, []*parleyv1.RecordWrite, error) {
	all := messages(event)
	last := all[len(all)-1]
	last.Metadata = map[string]string{eventNumber: strconv.Itoa(number)}
	if len(text) <= maxInline && !large {
		last.Native = &parleyv1.Native{Type: nativeEvent, Value: text}
		return all, nil, nil
	}
	records := eventRecords(text)
	reference := eventReference{Timestamp: epochSeconds(event.Timestamp)}
	for _, record := range records {
		reference.Keys = append(reference.Keys, record.GetKey())
	}
	value, err := marshal(reference)
	if err != nil {
		return nil, nil, err
	}
	short := &parleyv1.Message{
		Id: last.GetId(), Role: parleyv1.Role_ROLE_ASSISTANT, Agent: last.GetAgent(), Usage: last.GetUsage(),
		Content: preview(all, len(text), reference.Keys[0]), Metadata: last.GetMetadata(),
		Native: &parleyv1.Native{Type: nativeRecords, Value: value},
	}
	if event.Author == userAuthor {
		short.Role = parleyv1.Role_ROLE_USER
	}
	return []*parleyv1.Message{short}, records, nil
}

// preview returns the start of the text of messages, and says where the rest is.
func preview(all []*parleyv1.Message, size int, key string) string {
	var start string
	for _, message := range all {
		start += message.GetContent() + message.GetToolResult().GetContent()
	}
	if len(start) > previewBytes {
		end := previewBytes
		for !utf8.RuneStart(start[end]) {
			end--
		}
		start = start[:end]
	}
	return fmt.Sprintf("%s… [an event of %d bytes, in the record %s]", start, size, key)
}
