package routing

import "github.com/parleyhq/parley/store"

// message has the fields of a message that a summary needs. Its slices point into the frame.
type message struct {
	store.Fields
	data, calls  []nested // the structured data and the tool calls
	resultCallID []byte   // ToolResult.call_id
}

// nested is an encoded message inside a message. name is its type or id.
type nested struct{ name, encoded []byte }

// read replaces m with the message in a frame. It reuses the memory of the lists. It returns
// store.ErrCorrupt if the frame contains no message, or if a message inside it is damaged.
func (m *message) read(frame store.Frame) error {
	if err := m.Read(frame); err != nil {
		return err
	}
	var err error
	if m.data, err = appendNested(m.data[:0], m.StructuredData, store.DataType); err != nil {
		return err
	}
	if m.calls, err = appendNested(m.calls[:0], m.ToolCalls, store.ToolCallID); err != nil {
		return err
	}
	result, err := m.ReadResult()
	m.resultCallID = result.CallID
	return err
}

// appendNested appends encoded messages with their names to list.
func appendNested(list []nested, all [][]byte, name func([]byte) ([]byte, error)) ([]nested, error) {
	for _, encoded := range all {
		n, err := name(encoded)
		if err != nil {
			return list, err
		}
		list = append(list, nested{n, encoded})
	}
	return list, nil
}
