package agui

import (
	"encoding/json"
	"fmt"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Keys of the metadata of stored messages.
const (
	idKey       = "ag-ui.id"       // Id of the message in AG-UI, if the message cannot have it itself.
	idsKey      = "ag-ui.ids"      // Ids of the results of tools before the message, as a JSON list.
	roleKey     = "ag-ui.role"     // "developer" of a message of the system.
	nameKey     = "ag-ui.name"     // Name of the author.
	metadataKey = "ag-ui.metadata" // Metadata of the message, as JSON.
)

const (
	maxOwnIDBytes    = 256  // Length of Message.id.
	maxMetadataBytes = 1024 // Length of a value of Message.metadata.
)

// inputMessage is a message of a RunAgentInput in the form of the store. Whether the fields that AG-UI has and the
// server does not support are set counts only for messages that are stored.
type inputMessage struct {
	id, role    string
	message     *parleyv1.Message
	fields      []part // The names of the fields of message.
	unsupported faults
}

// parseMessage decodes the message at a field.
func parseMessage(f *faults, at string, raw json.RawMessage) inputMessage {
	o, ok := decodeObject(raw)
	if !ok {
		f.add(at, "must be an object")
		return inputMessage{message: new(parleyv1.Message)}
	}
	at += "."
	m := inputMessage{id: o.text(f, at, "id", true), role: o.text(f, at, "role", true), message: &parleyv1.Message{
		Metadata: make(map[string]string),
	}}
	if len(m.id) > maxMetadataBytes {
		f.add(at+"id", fmt.Sprintf("is longer than %d bytes", maxMetadataBytes))
	}
	if m.id == "" && !f.has(at+"id") {
		f.add(at+"id", "must not be empty")
	}
	m.parseCommon(f, at, o)
	switch m.role {
	case "user":
		m.message.Role = parleyv1.Role_ROLE_USER
		m.parseContent(f, at, o)
	case "system", "developer":
		m.message.Role, m.message.Content = parleyv1.Role_ROLE_SYSTEM, o.text(f, at, "content", true)
		if m.role == "developer" {
			m.message.Metadata[roleKey] = m.role
		}
	case "assistant":
		m.message.Role, m.message.Content = parleyv1.Role_ROLE_ASSISTANT, o.text(f, at, "content", false)
		m.parseCalls(f, at, o)
	case "tool":
		m.message.Role = parleyv1.Role_ROLE_TOOL
		m.parseContent(f, at, o)
		result := &parleyv1.ToolResult{CallId: o.text(f, at, "toolCallId", true), Content: m.message.GetContent()}
		if why := o.text(f, at, "error", false); why != "" {
			result.IsError = true
			if result.Content != "" && result.Content != why {
				m.unsupported.unsupport(at+"error", "is stored in content; leave content empty, or send the same text in both")
			}
			result.Content = why
		}
		if len(m.message.GetAttachments()) > 0 {
			m.unsupported.unsupport(at+"content", "the result of a tool must be a text")
		}
		m.message.ToolResult, m.message.Content, m.message.Attachments = result, "", nil
	case "reasoning":
		m.message.Role, m.message.Reasoning = parleyv1.Role_ROLE_ASSISTANT, o.text(f, at, "content", true)
	case "activity":
		m.unsupported.unsupport(at+"role", "activities are not stored; leave these messages out")
	default:
		if !f.has(at + "role") {
			f.add(at+"role", "must be user, assistant, tool, system, developer or reasoning")
		}
	}
	m.fields = append(m.fields,
		part{"tool_result.call_id", at + "toolCallId"}, part{"tool_result.content", at + "content"},
		part{"tool_calls", at + "toolCalls"}, part{"agent", at + "name"},
		part{`metadata["` + nameKey + `"]`, at + "name"}, part{`metadata["` + metadataKey + `"]`, at + "metadata"},
		part{"", at})
	return m
}

// parseCommon decodes the fields that messages of several roles have.
func (m *inputMessage) parseCommon(f *faults, at string, o object) {
	for _, name := range []string{"encryptedValue", "subagentRunId"} {
		if o.text(f, at, name, false) != "" {
			m.unsupported.unsupport(at+name, "is not stored; leave it out")
		}
	}
	if name := o.text(f, at, "name", false); name != "" {
		if m.role == "assistant" {
			m.message.Agent = name
		} else {
			m.message.Metadata[nameKey] = name
		}
	}
	if o.has("metadata") {
		if _, ok := decodeObject(o["metadata"]); !ok {
			f.add(at+"metadata", "must be an object")
		} else if text := compact(o["metadata"]); text != "{}" {
			if len(text) > maxMetadataBytes {
				m.unsupported.unsupport(at+"metadata", fmt.Sprintf("is longer than %d bytes as JSON", maxMetadataBytes))
			}
			m.message.Metadata[metadataKey] = text
		}
	}
}

// compact returns JSON without white space.
func compact(raw json.RawMessage) string {
	text, err := json.Marshal(raw)
	if err != nil {
		return string(raw)
	}
	return string(text)
}

// parseCalls decodes the calls of tools of a message.
func (m *inputMessage) parseCalls(f *faults, at string, o object) {
	for i, call := range o.list(f, at, "toolCalls", false) {
		if f.isFull() {
			break
		}
		m.message.ToolCalls = append(m.message.ToolCalls, m.parseCall(f, fmt.Sprintf("%stoolCalls[%d]", at, i), call))
	}
}

// parseCall decodes a call of a tool.
func (m *inputMessage) parseCall(f *faults, at string, raw json.RawMessage) *parleyv1.ToolCall {
	o, ok := decodeObject(raw)
	if !ok {
		f.add(at, "must be an object")
		return new(parleyv1.ToolCall)
	}
	at += "."
	call := &parleyv1.ToolCall{Id: o.text(f, at, "id", true)}
	if kind := o.text(f, at, "type", false); kind != "" && kind != "function" {
		f.add(at+"type", `must be "function"`)
	}
	for _, name := range []string{"encryptedValue", "metadata"} {
		if o.has(name) {
			m.unsupported.unsupport(at+name, "is not stored; leave it out")
		}
	}
	function, ok := decodeObject(o["function"])
	if !ok {
		f.add(at+"function", "must be an object")
		return call
	}
	call.Name = function.text(f, at+"function.", "name", true)
	call.Arguments = function.text(f, at+"function.", "arguments", true)
	return call
}

// parseContent decodes a content that is a text or a list of parts.
func (m *inputMessage) parseContent(f *faults, at string, o object) {
	if raw := o["content"]; len(raw) == 0 || raw[0] != '[' {
		m.message.Content = o.text(f, at, "content", true)
		return
	}
	var texts []string
	for i, raw := range o.list(f, at, "content", true) {
		if f.isFull() {
			break
		}
		at := fmt.Sprintf("%scontent[%d]", at, i)
		p, ok := decodeObject(raw)
		if !ok {
			f.add(at, "must be an object")
			continue
		}
		at += "."
		for _, name := range []string{"id", "metadata"} {
			if p.has(name) {
				m.unsupported.unsupport(at+name, "is not stored; leave it out")
			}
		}
		switch kind := p.text(f, at, "type", true); kind {
		case "text":
			texts = append(texts, p.text(f, at, "text", true))
		case "image", "audio", "video", "document":
			m.parseFile(f, at, kind, p)
		default:
			if !f.has(at + "type") {
				f.add(at+"type", "must be text, image, audio, video or document")
			}
		}
	}
	m.message.Content = strings.Join(texts, "\n")
}

// parseFile decodes a part that is a file.
func (m *inputMessage) parseFile(f *faults, at, kind string, p object) {
	source, ok := decodeObject(p["source"])
	if !ok {
		f.add(at+"source", "must be an object")
		return
	}
	switch source.text(f, at+"source.", "type", true) {
	case "url":
		attachment := &parleyv1.Attachment{
			Uri: source.text(f, at+"source.", "value", true), MediaType: source.text(f, at+"source.", "mimeType", false),
		}
		if attachment.GetMediaType() == "" && kind != "document" {
			attachment.MediaType = kind + "/*"
		}
		m.fields = append(m.fields,
			part{fmt.Sprintf("attachments[%d].uri", len(m.message.GetAttachments())), at + "source.value"},
			part{fmt.Sprintf("attachments[%d].media_type", len(m.message.GetAttachments())), at + "source.mimeType"})
		m.message.Attachments = append(m.message.Attachments, attachment)
	default:
		m.unsupported.unsupport(at+"source.type", "must be url: store the file elsewhere and send its URL")
	}
}

// setID stores the id of the message: in the message itself if it can have it.
func (m *inputMessage) setID() {
	if len(m.id) <= maxOwnIDBytes {
		m.message.Id = m.id
		return
	}
	m.message.Metadata[idKey] = m.id
}
