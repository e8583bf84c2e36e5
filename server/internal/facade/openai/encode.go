package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The form of items in messages is that of the OpenAI Agents adapter in client/python, so both read what the other
// has written: the JSON of an item is the native value of a message, whose other fields are for readers of the text.
const (
	itemType  = "openai.responses.item"
	itemsType = "openai.responses.items" // A JSON list of items.

	recordPrefix = "openai.session/items/"
	recordsKey   = "native_records" // Metadata: the number of records that have the native value.

	maxInlineBytes = 16 << 10 // JSON of an item that is larger is in records.
	maxTextBytes   = 16 << 10
	maxValueBytes  = 2 << 20 // of a record

	maxCallID   = 256
	maxToolName = 128
)

// encoded are items as messages, with the records that belong to them.
type encoded struct {
	messages []*parleyv1.Message
	records  []*parleyv1.RecordWrite
}

// encode returns the messages of items, one for each.
func encode(items []item) encoded {
	var e encoded
	for i := range items {
		it := &items[i]
		message := it.described()
		message.Id = it.text("id")
		value := []byte(it.raw)
		if len(value) <= maxInlineBytes {
			message.Native = &parleyv1.Native{Type: itemType, Value: value}
			e.messages = append(e.messages, message)
			continue
		}
		if message.Id == "" {
			message.Id = uuid.NewString() // The keys of the records contain it.
		}
		message.Native = &parleyv1.Native{Type: itemType}
		count := (len(value) + maxValueBytes - 1) / maxValueBytes
		message.Metadata = map[string]string{recordsKey: fmt.Sprint(count)}
		for _, key := range recordKeys(message) {
			part := value[:min(len(value), maxValueBytes)]
			value = value[len(part):]
			e.records = append(e.records, &parleyv1.RecordWrite{Key: key, Value: part})
		}
		e.messages = append(e.messages, message)
	}
	return e
}

// described returns a message with the role, the text, and the tool call or result of an item.
func (i *item) described() *parleyv1.Message {
	if role, ok := roleOf(i.text("role")); ok {
		m := &parleyv1.Message{Role: role, Content: cut(contentText(i.get("content")))}
		if role == parleyv1.Role_ROLE_USER {
			m.Attachments = attachmentsOf(i.get("content"))
		}
		return m
	}
	const assistant = parleyv1.Role_ROLE_ASSISTANT
	if i.kind == "reasoning" {
		return &parleyv1.Message{Role: assistant, Reasoning: cut(contentText(i.get("summary")))}
	}
	if call := i.call(); call != nil {
		return &parleyv1.Message{
			Role: assistant, ToolCalls: []*parleyv1.ToolCall{call}, Summary: "called " + call.GetName(),
		}
	}
	if result := i.result(); result != nil {
		return &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: result}
	}
	texts := []string{"[" + strings.ReplaceAll(i.kind, "_", " ") + "]"}
	for _, name := range []string{"name", "arguments", "queries", "code", "content", "output", "error"} {
		if text := contentText(i.get(name)); text != "" {
			texts = append(texts, text)
		}
	}
	return &parleyv1.Message{Role: assistant, Content: cut(strings.Join(texts, " "))}
}

// call returns the tool call of an item, or nil if it has none that the API accepts.
func (i *item) call() *parleyv1.ToolCall {
	id, name := i.text("call_id"), i.text("name")
	if name == "" {
		name = i.kind
	}
	if !strings.HasSuffix(i.kind, "_call") || id == "" || len(id) > maxCallID || len(name) > maxToolName {
		return nil
	}
	arguments := i.text("arguments")
	if kindOf(i.get("arguments")) != "a string" {
		var inputs object
		for _, name := range []string{"input", "action", "actions", "operation"} {
			if value := i.get(name); value != nil {
				inputs = append(inputs, member{name, value})
			}
		}
		arguments = string(toJSON(inputs))
	}
	if len(arguments) > maxTextBytes {
		return nil // Arguments that are cut are not JSON.
	}
	return &parleyv1.ToolCall{Id: id, Name: name, Arguments: arguments}
}

// result returns the tool result of an item, or nil if it has none that the API accepts.
func (i *item) result() *parleyv1.ToolResult {
	id := i.text("call_id")
	if !strings.HasSuffix(i.kind, "_call_output") || id == "" || len(id) > maxCallID {
		return nil
	}
	return &parleyv1.ToolResult{CallId: id, Content: cut(contentText(i.get("output")))}
}

// contentText returns the text of a content: of a string, a part, or a list of them.
func contentText(content json.RawMessage) string {
	switch kindOf(content) {
	case "missing", "null":
		return ""
	case "a string":
		return textOf(content)
	case "a list":
		parts, _ := elements(content, "")
		var texts []string
		for _, part := range parts {
			if text := contentText(part); text != "" {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "\n")
	case "an object":
	default:
		return string(content)
	}
	part, _ := parseObject(content, "")
	for _, name := range []string{"text", "refusal", "transcript"} {
		if kindOf(part.get(name)) == "a string" {
			return part.text(name)
		}
	}
	kind := part.text("type")
	if kind == "" {
		kind = "data"
	}
	kind = strings.ReplaceAll(strings.TrimPrefix(kind, "input_"), "_", " ")
	name := part.text("filename")
	if name == "" {
		name = part.text("file_id")
	}
	if name == "" {
		return "[" + kind + "]"
	}
	return "[" + kind + ": " + name + "]"
}

// cut returns a text of at most maxTextBytes as it is, and the beginning of a longer one with a note.
func cut(text string) string {
	if len(text) <= maxTextBytes {
		return text
	}
	const note = 64
	start := maxTextBytes - note
	for !utf8.RuneStart(text[start]) {
		start--
	}
	return fmt.Sprintf("%s\n[cut: %d bytes in all]", text[:start], len(text))
}

// recordKeys returns the keys of the records that have the native value of a message.
func recordKeys(m *parleyv1.Message) []string {
	native := m.GetNative()
	if len(native.GetValue()) > 0 || native.GetType() != itemType && native.GetType() != itemsType {
		return nil
	}
	var count int
	if _, err := fmt.Sscan(m.GetMetadata()[recordsKey], &count); err != nil {
		return nil
	}
	var keys []string
	const maxRecords = 100
	for i := range min(count, maxRecords) {
		keys = append(keys, fmt.Sprintf("%s%s/%04d", recordPrefix, m.GetId(), i))
	}
	return keys
}
