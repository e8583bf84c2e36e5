package routing

import (
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// message has the fields of a message that a summary needs. Its slices point into the frame.
type message struct {
	store.Fields
	resultCallID []byte // ToolResult.call_id
}

// read replaces m with the message in a frame. It reuses the memory of the lists. It returns
// store.ErrCorrupt if the frame contains no message, or if a message inside it is damaged.
func (m *message) read(frame store.Frame) error {
	if err := m.Read(frame); err != nil {
		return err
	}
	result, err := m.ReadResult()
	m.resultCallID = result.CallID
	return err
}

// isEmptyAnswer reports whether the message in the frame is an answer that was cut off before it said anything. It may
// have reasoning. It would take the place of a message that helps to route the next one.
func (m *message) isEmptyAnswer(frame store.Frame) (bool, error) {
	if m.Role != parleyv1.Role_ROLE_ASSISTANT || m.Status != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE ||
		len(m.Content)+len(m.Summary)+len(m.StructuredData)+len(m.ToolCalls) > 0 {
		return false, nil
	}
	// Such messages are rare, so decoding them costs nothing. Fields has no attachments.
	decoded, err := frame.Message()
	return len(decoded.GetAttachments()) == 0, err
}
