package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxURI is the maximum length of Attachment.uri.
const maxURI = 8192

// storedItem is an item of a stored message.
type storedItem struct {
	object

	id       string
	listed   string // Its id in lists of the conversation, if it is the output of a response, which has another one.
	sequence int32  // of the message
	shared   bool   // The message has other items, too.
}

// MarshalJSON returns the item.
func (s storedItem) MarshalJSON() ([]byte, error) { return s.object.MarshalJSON() }

// itemsOf returns the items of messages in their order.
func (h *handler) itemsOf(
	ctx context.Context, conversation string, messages []*parleyv1.Message,
) ([]storedItem, error) {
	values, err := h.readRecords(ctx, conversation, messages)
	if err != nil {
		return nil, err
	}
	var items []storedItem
	for _, m := range messages {
		items = append(items, decode(m, values)...)
	}
	return items, nil
}

// readRecords returns the values of the records that the native values of messages are in, by key.
func (h *handler) readRecords(
	ctx context.Context, conversation string, messages []*parleyv1.Message,
) (map[string][]byte, error) {
	const maxKeys = 100
	var keys []string
	for _, m := range messages {
		keys = append(keys, recordKeys(m)...)
	}
	values := make(map[string][]byte, len(keys))
	for len(keys) > 0 {
		some := keys[:min(len(keys), maxKeys)]
		reply, err := h.records.GetRecords(ctx, &parleyv1.GetRecordsRequest{ConversationId: conversation, Keys: some})
		if err != nil {
			return nil, err
		}
		for _, record := range reply.GetRecords() {
			values[record.GetKey()] = record.GetValue()
		}
		keys = append(slices.Clone(reply.GetOmittedKeys()), keys[len(some):]...)
	}
	return values, nil
}

// decode returns the items of a message. values has its records.
func decode(m *parleyv1.Message, values map[string][]byte) []storedItem {
	objects, prefixes := nativeItems(m, values)
	if objects == nil {
		objects, prefixes = fieldItems(m)
	}
	items := make([]storedItem, len(objects))
	for i, o := range objects {
		own := o.text("id")
		if own == "" || own != m.GetId() { // An id of its own finds an item only if the message has the same.
			own = itemID(prefixes[i], m.GetId(), i, len(objects))
			o = o.set("id", quote(own))
		}
		items[i] = storedItem{object: o, id: own, sequence: m.GetSequence(), shared: len(objects) > 1}
	}
	return items
}

// nativeItems returns the items that were stored in the native form, or nil if there are none that can be read.
func nativeItems(m *parleyv1.Message, values map[string][]byte) (objects []object, prefixes []string) {
	kind := m.GetNative().GetType()
	if kind != itemType && kind != itemsType {
		return nil, nil
	}
	value := m.GetNative().GetValue()
	for _, key := range recordKeys(m) {
		value = append(value, values[key]...)
	}
	list := []json.RawMessage{value}
	if kind == itemsType {
		list, _ = elements(value, "")
	}
	for _, text := range list {
		if !json.Valid(text) {
			return nil, nil
		}
		o, err := parseObject(bytes.TrimSpace(text), "")
		if err != nil {
			return nil, nil
		}
		o, prefix := normalize(o)
		objects, prefixes = append(objects, o), append(prefixes, prefix)
	}
	return objects, prefixes
}

// normalize adds to an item what clients may leave out and OpenAI always returns. It returns the prefix of its id.
func normalize(o object) (object, string) {
	if o.text("role") != "" && (o.text("type") == "" || o.text("type") == "message") {
		o = o.setDefault("type", quote("message"))
		if content := o.get("content"); kindOf(content) == "a string" {
			o = o.set("content", toJSON([]any{textPart(o.text("role"), content)}))
		}
		return o.setDefault("status", quote("completed")), messagePrefix
	}
	switch o.text("type") {
	case "function_call":
		return o.setDefault("status", quote("completed")), callPrefix
	case "function_call_output":
		return o.setDefault("status", quote("completed")), resultPrefix
	}
	return o, otherPrefix
}

// textPart returns the only part of a content that was a string.
func textPart(role string, text json.RawMessage) any {
	if role == "assistant" {
		return outputText{Type: "output_text", Text: text, Annotations: []any{}, Logprobs: []any{}}
	}
	return inputText{Type: "input_text", Text: text}
}

type inputText struct {
	Type string          `json:"type"`
	Text json.RawMessage `json:"text"`
}

// outputText is a part of the text of an assistant.
type outputText struct {
	Type        string          `json:"type"`
	Text        json.RawMessage `json:"text"`
	Annotations []any           `json:"annotations"`
	Logprobs    []any           `json:"logprobs"`
}

// fieldItems returns items for a message that was written without items. A message with only structured data has none.
func fieldItems(m *parleyv1.Message) (objects []object, prefixes []string) {
	status := quote(statusOf(m))
	if m.GetRole() == parleyv1.Role_ROLE_TOOL {
		return []object{{
			{"type", quote("function_call_output")},
			{"call_id", quote(m.GetToolResult().GetCallId())},
			{"output", quote(m.GetToolResult().GetContent())},
			{"status", status},
		}}, []string{resultPrefix}
	}
	role := roleName(m.GetRole())
	var content []any
	if m.GetContent() != "" {
		content = append(content, textPart(role, quote(m.GetContent())))
	}
	for _, a := range m.GetAttachments() {
		content = append(content, attachmentPart(a))
	}
	if len(content) > 0 {
		objects = append(objects, object{
			{"type", quote("message")}, {"role", quote(role)}, {"status", status}, {"content", toJSON(content)},
		})
		prefixes = append(prefixes, messagePrefix)
	}
	for _, call := range m.GetToolCalls() {
		objects = append(objects, object{
			{"type", quote("function_call")},
			{"call_id", quote(call.GetId())},
			{"name", quote(call.GetName())},
			{"arguments", quote(call.GetArguments())},
			{"status", status},
		})
		prefixes = append(prefixes, callPrefix)
	}
	return objects, prefixes
}

func statusOf(m *parleyv1.Message) string {
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		return "incomplete"
	}
	return "completed"
}

// attachmentPart returns the part for an attachment.
func attachmentPart(a *parleyv1.Attachment) any {
	if strings.HasPrefix(a.GetMediaType(), "image/") {
		return struct {
			Type     string `json:"type"`
			ImageURL string `json:"image_url"`
			Detail   string `json:"detail"`
		}{"input_image", a.GetUri(), "auto"}
	}
	return struct {
		Type     string `json:"type"`
		FileURL  string `json:"file_url"`
		Filename string `json:"filename,omitempty"`
	}{"input_file", a.GetUri(), a.GetFilename()}
}

// attachmentsOf returns the images and files in a content that are given by reference.
func attachmentsOf(content json.RawMessage) []*parleyv1.Attachment {
	if kindOf(content) != "a list" {
		return nil
	}
	parts, _ := elements(content, "")
	var all []*parleyv1.Attachment
	for _, part := range parts {
		o, _ := parseObject(part, "")
		if a := attachmentOf(o); a != nil {
			all = append(all, a)
		}
	}
	return all
}

// attachmentOf returns the attachment for a part with the URL of an image or file, or nil for another part.
func attachmentOf(part object) *parleyv1.Attachment {
	var a *parleyv1.Attachment
	switch part.text("type") {
	case "input_image":
		// A URL may not show the kind of image. The provider of the model detects it.
		a = &parleyv1.Attachment{Uri: part.text("image_url"), MediaType: mediaType(part.text("image_url"), "image/jpeg")}
		if !strings.HasPrefix(a.GetMediaType(), "image/") {
			a.MediaType = "image/jpeg"
		}
	case "input_file":
		a = &parleyv1.Attachment{
			Uri: part.text("file_url"), MediaType: mediaType(part.text("file_url"), ""), Filename: part.text("filename"),
		}
	default:
		return nil
	}
	u, err := url.Parse(a.GetUri())
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || len(a.GetUri()) > maxURI ||
		!utf8.ValidString(a.GetUri()) {
		return nil
	}
	return a
}

// mediaType returns the media type for the extension of a URL's path.
func mediaType(uri, otherwise string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return otherwise
	}
	switch extension := strings.ToLower(path.Ext(u.Path)); extension {
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".png", ".gif", ".webp":
		return "image/" + extension[1:]
	case ".pdf":
		return "application/pdf"
	}
	return otherwise
}
