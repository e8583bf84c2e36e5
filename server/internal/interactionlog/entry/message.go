package entry

import "github.com/parleyhq/parley/store"

// message has the fields of a message that an entry needs. The redactor replaces some of them. Its
// slices point into the frame.
type message struct {
	store.Fields
	usage    store.UsageFields
	result   store.ResultFields
	native   store.NativeFields
	types    [][]byte // of structured data
	metadata []pair
}

// pair is a key of a message's metadata with its value.
type pair struct{ key, value []byte }

// read replaces m with the message in a frame. It reuses the memory of the lists. It returns
// store.ErrCorrupt if the frame contains no message, or if a message inside it is damaged.
func (m *message) read(frame store.Frame) error {
	err := m.Read(frame)
	if err != nil {
		return err
	}
	if m.usage, err = m.ReadUsage(); err != nil {
		return err
	}
	if m.result, err = m.ReadResult(); err != nil {
		return err
	}
	if m.native, err = m.ReadNative(); err != nil {
		return err
	}
	m.types, m.metadata = m.types[:0], m.metadata[:0]
	for _, data := range m.StructuredData {
		m.types = append(m.types, data.Name)
	}
	for _, entry := range m.Metadata {
		key, value, err := store.MetadataEntry(entry)
		if err != nil {
			return err
		}
		m.metadata = append(m.metadata, pair{key, value})
	}
	return nil
}
