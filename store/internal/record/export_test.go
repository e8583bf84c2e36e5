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
	end, at := 0, headAt
	for range 3 {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) {
			return b
		}
		at, end = at+n, end+int(size)
	}
	end = min(end+at, len(b))
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[headAt:end]))
	binary.BigEndian.PutUint32(b[5:], Checksum(b[end:]))
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
