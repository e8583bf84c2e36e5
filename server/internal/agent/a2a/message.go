package a2a

import (
	sdk "github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
)

// inputs returns the messages to answer: the last one, and the results of tools right before it.
func inputs(messages []*parleyv1.Message) []*parleyv1.Message {
	start := max(len(messages)-1, 0)
	for start > 0 && messages[start-1].GetRole() == parleyv1.Role_ROLE_TOOL {
		start--
	}
	return messages[start:]
}

// newMessage returns the message for the remote agent. Its id is that of the turn, so that the remote agent recognizes
// a repetition.
func newMessage(request *parleyv1.RespondRequest, s state) *sdk.Message {
	m := &sdk.Message{
		ID: request.GetTurnId(), Role: sdk.MessageRoleUser, ContextID: s.ContextID, TaskID: sdk.TaskID(s.TaskID),
	}
	for _, input := range inputs(request.GetMessages()) {
		m.Parts = append(m.Parts, parts(input)...)
	}
	if len(m.Parts) == 0 {
		m.Parts = sdk.ContentParts{sdk.NewTextPart("")} // A message must have a part.
	}
	return m
}

// hasText reports whether a message contains more than results of tools.
func hasText(m *sdk.Message) bool {
	for _, p := range m.Parts {
		if p.Metadata[a2aparts.TypeKey] != a2aparts.TypeResult {
			return true
		}
	}
	return false
}

// parts returns the content of a message of the conversation.
func parts(m *parleyv1.Message) sdk.ContentParts {
	if r := m.GetToolResult(); r != nil {
		return sdk.ContentParts{a2aparts.OfResult(r)}
	}
	var all sdk.ContentParts
	if text := m.GetContent(); text != "" {
		all = append(all, sdk.NewTextPart(text))
	}
	for _, d := range m.GetStructuredData() {
		all = append(all, a2aparts.OfData(d))
	}
	for _, file := range m.GetAttachments() {
		part := sdk.NewFileURLPart(sdk.URL(file.GetUri()), file.GetMediaType())
		part.Filename = file.GetFilename()
		all = append(all, part)
	}
	return all
}
