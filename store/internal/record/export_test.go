package record

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhq/parley/store"
)

// Sealed returns a value with correct checksums for its parts, whatever they contain.
func Sealed(value []byte) []byte {
	b := slices.Clone(value)
	if len(b) == 0 {
		return b
	}
	if b[0] != oldFormat && b[0] != dividedFormat {
		b[0] = format
	}
	l, ok := layoutOf(b)
	if !ok {
		return b
	}
	ends := make([]int, l.lengths)
	end, at := 0, l.headSize()
	for i := range ends {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) {
			return b
		}
		at, end = at+n, end+int(size)
		ends[i] = end
	}
	start := min(at+ends[2], len(b))
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[l.headSize():start]))
	for i := 1; i < l.sums; i++ {
		end := len(b)
		if i+2 < l.lengths {
			end = min(at+ends[i+2], len(b))
		}
		binary.BigEndian.PutUint32(b[1+4*i:], Checksum(b[start:end]))
		start = end
	}
	return b
}

// SealedProgress returns a value of MarshalProgress with a correct checksum.
func SealedProgress(value []byte) []byte {
	b := slices.Clone(value)
	if len(b) >= 5 {
		b[0] = progressFormat
		binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[5:]))
	}
	return b
}

// HasType reports whether the indexes of a record have structured data of this type.
func (r *Record) HasType(kind string) bool { return hasType(r.Data, kind) || hasType(r.Types, kind) }

// RowOf returns what a list reads of a value, and whether it is in that list.
func RowOf(value []byte, l *store.List, now time.Time) (key []byte, updated time.Time, listed bool, err error) {
	r, _, err := readRow(value, true)
	return r.key(), r.updated, string(r.tenant) == l.Tenant && r.matches(l, strings.ToLower(l.Text)) &&
		!r.expired(now, Ephemeral{}), err
}

// Uses returns the entries of an index of structured data as text.
func Uses(data []byte) []string {
	var uses []string
	for _, entry := range fields(data) {
		sequence, kind := decodeUse(entry)
		uses = append(uses, fmt.Sprintf("%d %s", sequence, kind))
	}
	return uses
}

// Join adds the messages of all chunks, oldest first, to the other messages of the record.
func (r *Record) Join(chunks []*Chunk) error { return r.join(chunks, true) }

// Scope is the scope of a list's tokens.
var Scope = scope

// SealedChunk returns a value of Chunk.Marshal for a nil key with correct checksums, whatever its parts contain.
func SealedChunk(value []byte) []byte {
	b := slices.Clone(value)
	if len(b) < chunkHeadAt {
		return b
	}
	b[0] = chunkFormat
	sizes, n := binary.Uvarint(b[chunkHeadAt:])
	data, m := binary.Uvarint(b[min(chunkHeadAt+max(0, n), len(b)):])
	end := chunkHeadAt + uint64(n+m) + sizes + data
	if n <= 0 || m <= 0 || sizes > uint64(len(b)) || data > uint64(len(b)) || end > uint64(len(b)) {
		return b
	}
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[chunkHeadAt:end]))
	binary.BigEndian.PutUint32(b[5:], Checksum(b[end:]))
	return b
}
