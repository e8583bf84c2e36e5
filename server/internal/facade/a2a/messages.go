package a2a

import (
	"encoding/json"
	"fmt"
	"mime"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
)

// keySize is the key of the metadata of a URL part with Attachment.size_bytes.
const keySize = "parley.sizeBytes"

// Keys of Message.metadata.
const (
	keyMessageID = "a2a.message_id"
	keyMetadata  = "a2a.metadata" // Message.metadata of the protocol, as JSON
	keyText      = "a2a.text"     // set if a text alone was sent as the result of a tool call
)

// maxMetadataBytes is the maximum size of a value of Message.metadata.
const maxMetadataBytes = 1024

// toolResult is the value of a data part with the result of a tool call, as a client sends it.
type toolResult struct {
	CallID  string `json:"callId"`
	Name    string `json:"name"`
	Content any    `json:"content"` // a text, or any other JSON value, which becomes its text
	IsError bool   `json:"isError"`
}

// input is a message of the protocol as fields of a Chat request.
type input struct {
	text        string
	data        []*parleyv1.StructuredData
	attachments []*parleyv1.Attachment
	results     []*parleyv1.ToolResult
	metadata    map[string]string
}

// input returns the fields for a message. The error names the faulty part.
func (t *tasks) input(m *a2a.Message) (*input, error) {
	in := &input{metadata: map[string]string{}}
	if len(m.ID) <= maxMetadataBytes {
		in.metadata[keyMessageID] = m.ID
	}
	if len(m.Metadata) > 0 {
		text, err := json.Marshal(m.Metadata)
		if err != nil || len(text) > maxMetadataBytes {
			return nil, a2a.NewError(t.invalid(), fmt.Sprintf(
				"message.metadata: has more than %d bytes as JSON; send a data part", maxMetadataBytes))
		}
		in.metadata[keyMetadata] = string(text)
	}
	var texts []string
	for i, part := range m.Parts {
		where := fmt.Sprintf("message.parts[%d]", i)
		if part == nil {
			return nil, a2a.NewError(t.invalid(), where+": must not be null")
		}
		switch content := part.Content.(type) {
		case a2a.Text:
			texts = append(texts, string(content))
		case a2a.URL:
			in.attachments = append(in.attachments, &parleyv1.Attachment{
				Uri: string(content), MediaType: part.MediaType, Filename: part.Filename,
			})
		case a2a.Data:
			if err := in.addData(part, content.Value); err != nil {
				return nil, a2a.NewError(t.invalid(), where+".data: "+err.Error())
			}
		case a2a.Raw:
			return nil, a2a.NewError(a2a.ErrUnsupportedContentType,
				where+".raw: bytes are not supported; store the file elsewhere and send its url")
		default:
			return nil, a2a.NewError(t.invalid(), where+": needs a text, a url or data")
		}
	}
	in.text = strings.Join(texts, "\n")
	return in, nil
}

// addData adds a data part.
func (i *input) addData(part *a2a.Part, value any) error {
	kind, _ := part.Metadata[a2aparts.TypeKey].(string)
	if object, ok := value.(map[string]any); ok && len(object) == 1 && object[a2aparts.ResultField] != nil &&
		(kind == "" || kind == a2aparts.TypeResult) {
		return i.addResult(object[a2aparts.ResultField])
	}
	if kind == "" {
		kind = a2aparts.TypeData
	}
	converted, err := structpb.NewValue(value)
	if err != nil {
		return err
	}
	i.data = append(i.data, &parleyv1.StructuredData{Type: kind, Value: converted})
	return nil
}

// addResult adds the result of a tool call.
func (i *input) addResult(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var result toolResult
	if json.Unmarshal(text, &result) != nil || result.CallID == "" {
		return fmt.Errorf(`toolResult: must be an object {"callId": text, "content": any value, "isError": true or false}`)
	}
	content, isText := result.Content.(string)
	if !isText && result.Content != nil {
		encoded, err := json.Marshal(result.Content)
		if err != nil {
			return err
		}
		content = string(encoded)
	}
	i.results = append(i.results, &parleyv1.ToolResult{
		CallId: result.CallID, Name: result.Name, Content: content, IsError: result.IsError,
	})
	return nil
}

// acceptsText reports whether one of these media types matches text or JSON.
func acceptsText(modes []string) bool {
	for _, mode := range modes {
		media, _, err := mime.ParseMediaType(mode)
		if err != nil {
			media = mode
		}
		switch media {
		case mediaText, mediaJSON, "text/*", "application/*", "*/*", "text", "*":
			return true
		}
	}
	return false
}

// messageOf returns a stored message of a task.
func messageOf(task *a2a.Task, m *parleyv1.Message) *a2a.Message {
	out := &a2a.Message{ID: m.GetId(), TaskID: task.ID, ContextID: task.ContextID, Role: a2a.MessageRoleUser}
	if id := m.GetMetadata()[keyMessageID]; id != "" {
		out.ID = id
	}
	if text := m.GetMetadata()[keyMetadata]; text != "" {
		_ = json.Unmarshal([]byte(text), &out.Metadata) // Others may write this key; then there is no metadata.
	}
	switch m.GetRole() {
	case parleyv1.Role_ROLE_ASSISTANT:
		out.Role = a2a.MessageRoleAgent
		out.Parts = answerParts(m)
		for _, call := range m.GetToolCalls() {
			out.Parts = append(out.Parts, a2aparts.OfCall(call))
		}
	case parleyv1.Role_ROLE_TOOL:
		if m.GetAgent() != "" { // The agent ran the tool.
			out.Role = a2a.MessageRoleAgent
		}
		out.Parts = a2a.ContentParts{a2aparts.OfResult(m.GetToolResult())}
		if m.GetMetadata()[keyText] != "" {
			out.Parts = a2a.ContentParts{a2a.NewTextPart(m.GetToolResult().GetContent())}
		}
	default:
		out.Parts = answerParts(m)
	}
	if len(out.Parts) == 0 {
		out.Parts = a2a.ContentParts{a2a.NewTextPart("")} // The protocol requires a part.
	}
	return out
}

// answerParts returns the text, the data and the files of a message.
func answerParts(m *parleyv1.Message) a2a.ContentParts {
	var parts a2a.ContentParts
	if m.GetContent() != "" {
		parts = append(parts, a2a.NewTextPart(m.GetContent()))
	}
	for _, data := range m.GetStructuredData() {
		parts = append(parts, a2aparts.OfAnswer(data))
	}
	return append(parts, fileParts(m)...)
}

// fileParts returns the attachments of a message.
func fileParts(m *parleyv1.Message) a2a.ContentParts {
	var parts a2a.ContentParts
	for _, file := range m.GetAttachments() {
		part := a2a.NewFileURLPart(a2a.URL(file.GetUri()), file.GetMediaType())
		part.Filename = file.GetFilename()
		if file.GetSizeBytes() > 0 {
			part.Metadata = map[string]any{keySize: file.GetSizeBytes()}
		}
		parts = append(parts, part)
	}
	return parts
}
