package agui

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// tailPage is the number of messages on the first page of a history that is compared with that of a client.
	tailPage = 20
	// maxTailPages is the maximum number of pages of a history that are compared: 10,000 messages. A client that sends
	// only its new message has none of them.
	maxTailPages = 11
	// maxSnapshotBytes is the maximum size of the messages of a snapshot. The client of AG-UI reads events of at most
	// 10 MB.
	maxSnapshotBytes = 6 << 20
	uuidLength       = 36
)

// tail is what is known of the newest messages of a conversation.
type tail struct {
	version int32 // 0 if the conversation does not exist.
	ids     map[string]struct{}
	turns   map[string]struct{}        // Ids of the turns of answers.
	results map[string]struct{}        // The results in answers: the id of the turn, "-" and that of the call.
	data    map[string]*structpb.Value // The newest value of each type.
}

// hasMessage reports whether the conversation has a message of a client. Messages of answers have ids of this package,
// which begin with the turn. A client may choose such ids for its own messages, too.
func (t *tail) hasMessage(m inputMessage) bool {
	if _, ok := t.ids[m.id]; ok {
		return true
	}
	_, isOfTurn := t.turnOf(m.id)
	switch m.role {
	case "assistant", "reasoning":
		_, isFirst := t.turns[m.id]
		return isFirst || isOfTurn
	case "tool":
		call, isResult := strings.CutSuffix(m.id, resultSuffix)
		if !isOfTurn || !isResult {
			return false
		}
		_, ok := t.results[call[:uuidLength+1]+t.callID(call)]
		return ok
	}
	return false
}

// turnOf returns the turn of the conversation whose id begins an id, and what follows.
func (t *tail) turnOf(id string) (rest string, ok bool) {
	if len(id) <= uuidLength || id[uuidLength] != '-' {
		return "", false
	}
	_, ok = t.turns[id[:uuidLength]]
	return id[uuidLength+1:], ok
}

// callID returns the id in the store of the call with an id in AG-UI; see [callID].
func (t *tail) callID(id string) string {
	if rest, ok := t.turnOf(id); ok {
		if number, own, ok := strings.Cut(rest, "-"); ok && isNumber(number) {
			return own
		}
	}
	return id
}

func isNumber(text string) bool {
	_, ok := parseCount(text)
	return ok
}

// tail reads messages of a conversation, newest first, until it has one that the client has too, at most maxTailPages.
func (c *request) tail(ctx context.Context, threadID string) (*tail, error) {
	known := &tail{
		ids: make(map[string]struct{}), turns: make(map[string]struct{}), results: make(map[string]struct{}),
		data: make(map[string]*structpb.Value),
	}
	list := &parleyv1.ListMessagesRequest{ConversationId: threadID, PageSize: tailPage}
	for range maxTailPages {
		page, err := c.api.ListMessages(ctx, list)
		switch {
		case isMissing(err):
			return known, nil
		case err != nil:
			return nil, err
		}
		if known.version == 0 {
			known.version = page.GetConversation().GetVersion()
		}
		for _, m := range page.GetMessages() {
			for _, id := range append(precedingIDs(m), m.GetId(), m.GetMetadata()[idKey]) {
				known.ids[id] = struct{}{}
			}
			known.turns[m.GetTurnId()] = struct{}{}
			if m.GetRole() == parleyv1.Role_ROLE_TOOL {
				known.results[m.GetTurnId()+"-"+m.GetToolResult().GetCallId()] = struct{}{}
			}
			for _, d := range slices.Backward(m.GetStructuredData()) {
				if _, ok := known.data[d.GetType()]; !ok {
					known.data[d.GetType()] = d.GetValue()
				}
			}
		}
		list.PageToken, list.PageSize = page.GetNextPageToken(), maxPage
		if list.GetPageToken() == "" || slices.ContainsFunc(c.input.messages, known.hasMessage) {
			return known, nil
		}
	}
	return known, nil
}

// precedingIDs returns the ids of the results of tools that were stored together with a message.
func precedingIDs(m *parleyv1.Message) (ids []string) {
	if text := m.GetMetadata()[idsKey]; text != "" {
		_ = json.Unmarshal([]byte(text), &ids) // Others may write the metadata, too.
	}
	return ids
}

// history returns the messages of a thread, oldest first, without the answer of a turn. Older messages that do not fit
// in a snapshot are left out. A thread that does not exist has no messages.
func (c *request) history(ctx context.Context, threadID string, except *parleyv1.Turn) ([]*parleyv1.Message, error) {
	var messages []*parleyv1.Message
	list := &parleyv1.ListMessagesRequest{ConversationId: threadID, PageSize: maxPage}
	size := 0
	for {
		page, err := c.api.ListMessages(ctx, list)
		switch {
		case isMissing(err):
			return nil, nil
		case err != nil:
			return nil, err
		}
		for _, m := range page.GetMessages() {
			if m.GetTurnId() == except.GetId() && m.GetSequence() > except.GetInputSequence() && except != nil {
				continue
			}
			if size += proto.Size(m); size > maxSnapshotBytes {
				slices.Reverse(messages)
				return messages, nil
			}
			messages = append(messages, m)
		}
		if list.PageToken = page.GetNextPageToken(); list.PageToken == "" {
			slices.Reverse(messages)
			return messages, nil
		}
	}
}

// message is a message of AG-UI.
type message struct {
	ID         string          `json:"id"`
	Role       string          `json:"role"`
	Name       string          `json:"name,omitempty"`
	Content    any             `json:"content,omitempty"` // A text, or a list of contentPart.
	ToolCalls  []toolCall      `json:"toolCalls,omitempty"`
	ToolCallID string          `json:"toolCallId,omitempty"`
	Error      string          `json:"error,omitempty"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"` // "function"
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type contentPart struct {
	Type   string      `json:"type"`
	Text   string      `json:"text,omitempty"`
	Source *partSource `json:"source,omitempty"`
}

type partSource struct {
	Type     string `json:"type"` // "url"
	Value    string `json:"value"`
	MimeType string `json:"mimeType,omitempty"`
}

// details is what AG-UI has no fields for. It is the value "parley" of the metadata of a message.
type details struct {
	Incomplete     bool        `json:"incomplete,omitempty"`
	StructuredData []dataValue `json:"structuredData,omitempty"`
	Attachments    []fileRef   `json:"attachments,omitempty"`
}

type dataValue struct {
	Type  string `json:"type"`
	Value any    `json:"value"`
}

type fileRef struct {
	URI       string `json:"uri"`
	MediaType string `json:"mediaType,omitempty"`
	Filename  string `json:"filename,omitempty"`
}

// answerID returns the id of the message of an answer with this number, from 0.
func answerID(turnID string, number int) string {
	if number == 0 {
		return turnID
	}
	return turnID + "-" + strconv.Itoa(number)
}

// callID returns the id in AG-UI of a call in the message of an answer with this number. Models use the same id for
// several calls of a conversation, which clients of AG-UI take for one call.
func callID(turnID string, number int, id string) string {
	return turnID + "-" + strconv.Itoa(number) + "-" + id
}

// resultID returns the id of the result of a call with this id in AG-UI.
func resultID(callID string) string { return callID + resultSuffix }

const resultSuffix = "-result"

// reasoningID returns the id of the reasoning of a message.
func reasoningID(id string) string { return id + "-reasoning" }

// fromStored returns stored messages in AG-UI, and the newest state among their data, nil if there is none.
func fromStored(messages []*parleyv1.Message) (all []message, state any) {
	all = make([]message, 0, len(messages))
	calls := make(map[string]string) // The ids in AG-UI of the newest calls with these ids.
	turnID, number := "", -1         // of the current answer and its newest message
	for _, m := range messages {
		if m.GetTurnId() != turnID {
			turnID, number = m.GetTurnId(), -1
		}
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			number++
		}
		ids := precedingIDs(m)
		for k := range ids { // The messages before m are the newest in all, one for each of these ids.
			if at := len(all) - len(ids) + k; at >= 0 && all[at].Role == "tool" {
				all[at].ID = ids[k]
			}
		}
		one := fromMessage(m)
		for i, call := range m.GetToolCalls() {
			if turnID != "" {
				one.ToolCalls[i].ID = callID(turnID, number, call.GetId())
			}
			calls[call.GetId()] = one.ToolCalls[i].ID
		}
		if id, ok := calls[one.ToolCallID]; ok {
			one.ToolCallID = id
		}
		switch {
		case m.GetMetadata()[idKey] != "" || turnID == "" || number < 0:
		case one.Role == "assistant":
			one.ID = answerID(turnID, number)
		case one.Role == "tool":
			one.ID = resultID(one.ToolCallID)
		}
		if m.GetReasoning() != "" {
			all = append(all, message{ID: reasoningID(one.ID), Role: "reasoning", Content: m.GetReasoning()})
			if m.GetContent() == "" && len(m.GetToolCalls()) == 0 && len(m.GetStructuredData()) == 0 {
				continue
			}
		}
		all = append(all, one)
		for _, d := range m.GetStructuredData() {
			if d.GetType() == stateType {
				state = d.GetValue().AsInterface()
			}
		}
	}
	return all, state
}

// fromMessage returns a stored message in AG-UI. Its ids are those of the store.
func fromMessage(m *parleyv1.Message) message {
	out := message{ID: cmp.Or(m.GetMetadata()[idKey], m.GetId()), Name: m.GetMetadata()[nameKey], Content: m.GetContent()}
	own := details{Incomplete: m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE}
	switch m.GetRole() {
	case parleyv1.Role_ROLE_SYSTEM:
		if out.Role = "system"; m.GetMetadata()[roleKey] == "developer" {
			out.Role = "developer"
		}
	case parleyv1.Role_ROLE_ASSISTANT:
		out.Role, out.Name = "assistant", m.GetAgent()
		for _, call := range m.GetToolCalls() {
			function := functionCall{call.GetName(), call.GetArguments()}
			out.ToolCalls = append(out.ToolCalls, toolCall{call.GetId(), "function", function})
		}
	case parleyv1.Role_ROLE_TOOL:
		result := m.GetToolResult()
		out.Role, out.Content, out.ToolCallID = "tool", result.GetContent(), result.GetCallId()
		if result.GetIsError() {
			out.Error = result.GetContent()
		}
	default:
		out.Role = "user"
		if len(m.GetAttachments()) > 0 {
			out.Content = parts(m)
		}
	}
	if out.Role != "user" {
		for _, a := range m.GetAttachments() {
			own.Attachments = append(own.Attachments, fileRef{a.GetUri(), a.GetMediaType(), a.GetFilename()})
		}
	}
	for _, d := range m.GetStructuredData() {
		if !strings.HasPrefix(d.GetType(), dataPrefix) {
			own.StructuredData = append(own.StructuredData, dataValue{d.GetType(), d.GetValue().AsInterface()})
		}
	}
	out.Metadata = metadataOf(m.GetMetadata()[metadataKey], own)
	return out
}

// parts returns the content of a message with attachments.
func parts(m *parleyv1.Message) []contentPart {
	var all []contentPart
	if text := m.GetContent(); text != "" {
		all = append(all, contentPart{Type: "text", Text: text})
	}
	for _, a := range m.GetAttachments() {
		kind, _, _ := strings.Cut(a.GetMediaType(), "/")
		if kind != "image" && kind != "audio" && kind != "video" {
			kind = "document"
		}
		mediaType := a.GetMediaType()
		if mediaType == kind+"/*" {
			mediaType = ""
		}
		all = append(all, contentPart{Type: kind, Source: &partSource{"url", a.GetUri(), mediaType}})
	}
	return all
}

// metadataOf returns the metadata of a message: what its client has sent as JSON, and what is its own.
func metadataOf(sent string, own details) json.RawMessage {
	all := make(map[string]any)
	if sent != "" && json.Unmarshal([]byte(sent), &all) != nil {
		clear(all) // Others may write the metadata, too.
	}
	if own.Incomplete || len(own.StructuredData) > 0 || len(own.Attachments) > 0 {
		all["parley"] = own
	}
	if len(all) == 0 {
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil
	}
	return text
}
