package layout

import (
	"encoding/binary"
	"fmt"

	"github.com/parleyhq/parley/store"
)

// Journal is the entry "journal" of meta: how the file and its journal belong together. The zero value
// means that the file never had a journal.
type Journal struct {
	// ID of the journal.
	ID [16]byte
	// Folded is the index of an operation: the file contains this one and all before it. It is 0 if there is none.
	Folded uint64
	// Through is the index of the newest operation in the journal when the entry was written, and Segment the number of
	// the segment with it. Segment is 0 if there was none.
	Through uint64
	Segment uint32
}

// journalSize is the size of an encoded Journal without its checksum.
const journalSize = 16 + 8 + 8 + 4

// Encode returns the value of the entry with that key.
func (j Journal) Encode(key []byte) []byte {
	b := append(make([]byte, 0, journalSize+4), j.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, j.Folded)
	b = binary.BigEndian.AppendUint64(b, j.Through)
	return seal(key, binary.BigEndian.AppendUint32(b, j.Segment))
}

// DecodeJournal decodes the value of the entry with that key, which may be nil. If it is damaged, the error is
// store.ErrCorrupt.
func DecodeJournal(key, value []byte) (j Journal, err error) {
	if value == nil {
		return j, nil
	}
	b, ok := unseal(key, value, journalSize)
	if !ok {
		return j, fmt.Errorf("%w: entry of the journal", store.ErrCorrupt)
	}
	copy(j.ID[:], b)
	j.Folded, j.Through = binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
	j.Segment = binary.BigEndian.Uint32(b[32:])
	return j, nil
}
