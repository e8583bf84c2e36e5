package journal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
)

// Layout of a batch, see the package comment.
const (
	magic      = "plyj"
	headerSize = 48
	sumSize    = 4
	alignment  = 8
)

// batch is the header of a batch.
type batch struct {
	id     ID
	anchor uint64
	first  uint64 // index of the first operation
	count  uint32
	length uint32 // of the payload
}

// end returns the offset after a batch that begins at an offset.
func (b batch) end(at int64) int64 { return align(at + headerSize + int64(b.length)) }

func align(at int64) int64 { return (at + alignment - 1) &^ (alignment - 1) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

var errTooLarge = errors.New("a batch of the journal is too large")

// appendBatch appends a batch to dst, which must be empty, and sets the offsets and lengths of its
// operations in places, from the beginning of the batch.
func appendBatch(dst []byte, b batch, operations [][]byte, places []Place) ([]byte, error) {
	dst = append(dst, make([]byte, headerSize)...)
	for i, o := range operations {
		dst = binary.AppendUvarint(dst, uint64(len(o)))
		dst = append(binary.BigEndian.AppendUint32(dst, checksum(o)), o...)
		if len(dst) > math.MaxInt32 {
			return dst, errTooLarge
		}
		places[i] = Place{offset: uint32(len(dst) - len(o)), length: uint32(len(o))}
	}
	copy(dst, magic)
	copy(dst[8:], b.id[:])
	binary.BigEndian.PutUint64(dst[24:], b.anchor)
	binary.BigEndian.PutUint64(dst[32:], b.first)
	binary.BigEndian.PutUint32(dst[40:], uint32(len(operations)))
	binary.BigEndian.PutUint32(dst[44:], uint32(len(dst)-headerSize))
	binary.BigEndian.PutUint32(dst[4:], checksum(dst[8:]))
	for len(dst)%alignment != 0 {
		dst = append(dst, 0)
	}
	return dst, nil
}

// decodeHeader decodes a header. The bool is false if the bytes are not a header.
func decodeHeader(b []byte) (batch, bool) {
	if len(b) < headerSize || string(b[:4]) != magic {
		return batch{}, false
	}
	return batch{
		id: ID(b[8:24]), anchor: binary.BigEndian.Uint64(b[24:]), first: binary.BigEndian.Uint64(b[32:]),
		count: binary.BigEndian.Uint32(b[40:]), length: binary.BigEndian.Uint32(b[44:]),
	}, true
}

// decodeOperations calls replay with each operation of a batch, whose header and payload are in b. It
// returns false if the payload is not made of the operations of the header.
func decodeOperations(b []byte, h batch, replay func(i int, offset int, operation []byte) error) (ok bool, err error) {
	at := headerSize
	for i := range int(h.count) {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) || at+n+sumSize+int(size) > len(b) {
			return false, nil
		}
		operation, valid := checkOperation(b[at+n : at+n+sumSize+int(size)])
		if !valid {
			return false, nil
		}
		at += n + sumSize
		if err := replay(i, at, operation); err != nil {
			return true, err
		}
		at += int(size)
	}
	return at == len(b), nil
}

// checkOperation returns an operation from its checksum and bytes.
func checkOperation(b []byte) (operation []byte, ok bool) {
	return b[sumSize:], checksum(b[sumSize:]) == binary.BigEndian.Uint32(b)
}
