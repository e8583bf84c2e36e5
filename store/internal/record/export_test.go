package record

import (
	"encoding/binary"
	"slices"
)

// Sealed is a value with the sums that belong to what it says, whatever that is.
func Sealed(value []byte) []byte {
	b := slices.Clone(value)
	if len(b) < headAt {
		return b
	}
	b[0] = format
	var ends [4]int
	end, at := 0, headAt
	for i := range ends {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) {
			return b
		}
		at, end = at+n, end+int(size)
		ends[i] = end
	}
	head, prompt := min(at+ends[2], len(b)), min(at+ends[3], len(b))
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[headAt:head]))
	binary.BigEndian.PutUint32(b[5:], Checksum(b[head:prompt]))
	binary.BigEndian.PutUint32(b[9:], Checksum(b[prompt:]))
	return b
}

// SealedProgress is the same for what MarshalProgress makes.
func SealedProgress(value []byte) []byte {
	b := slices.Clone(value)
	if len(b) >= 5 {
		b[0] = format
		binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[5:]))
	}
	return b
}

// Scope of a list's tokens.
var Scope = scope
