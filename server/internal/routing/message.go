package routing

import "github.com/parleyhq/parley/store"

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
