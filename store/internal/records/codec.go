package records

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/checksum"
)

// Layout of a record as one value:
//
//	byte    format, 1
//	4 bytes CRC-32C of the key, the format, the length of the head and the head, big-endian
//	4 bytes CRC-32C of the value, big-endian
//	uvarint length of the head
//	        storev1.StoredRecord, the head
//	        value up to the end
//
// Two checksums let lists of keys and writes read the head without reading the value.
const (
	format = 1
	headAt = 1 + 4 + 4
)

// hidden begins the keys of values that are not records of the API: the requests of a tenant. The keys of records have
// no control characters.
const hidden = "\x00"

// FirstKey is before the keys of all records and after all hidden keys.
const FirstKey = "\x01"

// IsHidden reports whether a key is not that of a record of the API.
func IsHidden(key string) bool { return strings.HasPrefix(key, hidden) }

// Marshal encodes a record, without its conversation_id, into a new slice. It returns an error if the record has
// invalid text.
func Marshal(r *parleyv1.Record) ([]byte, error) {
	head := &storev1.StoredRecord{
		Revision: r.GetRevision(), UpdateTime: r.GetUpdateTime(), MediaType: r.GetMediaType(), Labels: r.GetLabels(),
		ExpireTime: r.GetExpireTime(), ValueBytes: int64(len(r.GetValue())),
	}
	size := proto.Size(head)
	b := make([]byte, headAt, headAt+binary.MaxVarintLen32+size+len(r.GetValue()))
	b[0] = format
	b = binary.AppendUvarint(b, uint64(size))
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, head)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	binary.BigEndian.PutUint32(b[1:], checksum.Of([]byte(r.GetKey()), b[:1], b[headAt:]))
	binary.BigEndian.PutUint32(b[5:], checksum.Of(r.GetValue()))
	return append(b, r.GetValue()...), nil
}

// Unmarshal decodes a value with its key and checks all of it. The result shares the memory of the value.
func Unmarshal(key string, b []byte) (*parleyv1.Record, error) {
	head, value, err := split(key, b)
	if err != nil {
		return nil, err
	}
	if err := checkValue(key, b, value); err != nil {
		return nil, err
	}
	r := withoutValue(key, head)
	r.Value = value
	return r, nil
}

// checkValue checks the record's value in b.
func checkValue(key string, b, value []byte) error {
	if checksum.Of(value) != binary.BigEndian.Uint32(b[5:]) {
		return corrupt(key, "value")
	}
	return nil
}

// UnmarshalHead decodes a value without the record's value, which it does not read.
func UnmarshalHead(key string, b []byte) (*parleyv1.Record, error) {
	head, _, err := split(key, b)
	if err != nil {
		return nil, err
	}
	return withoutValue(key, head), nil
}

func withoutValue(key string, head *storev1.StoredRecord) *parleyv1.Record {
	return &parleyv1.Record{
		Key: key, MediaType: head.GetMediaType(), Revision: head.GetRevision(), UpdateTime: head.GetUpdateTime(),
		Labels: head.GetLabels(), ExpireTime: head.GetExpireTime(), SizeBytes: int32(head.GetValueBytes()),
	}
}

// CheckHead checks the checksum of the key and the head of a value. The error is store.ErrCorrupt.
func CheckHead(key, b []byte) error {
	_, _, err := headIn(key, b)
	return err
}

// corrupt returns an error about a part of a record's value.
func corrupt[T ~string | ~[]byte](key T, part string) error {
	return fmt.Errorf("%w: %s of record %.128q", store.ErrCorrupt, part, key)
}

// headIn checks the head in a value and returns where it begins and ends.
func headIn(key, b []byte) (begin, end int, err error) {
	if len(b) < headAt || b[0] != format {
		return 0, 0, corrupt(key, "format")
	}
	size, n := binary.Uvarint(b[headAt:])
	if n <= 0 || size > uint64(len(b)-headAt-n) {
		return 0, 0, corrupt(key, "length")
	}
	begin, end = headAt+n, headAt+n+int(size)
	if checksum.Of(key, b[:1], b[headAt:end]) != binary.BigEndian.Uint32(b[1:]) {
		return 0, 0, corrupt(key, "head")
	}
	return begin, end, nil
}

// split splits a value into head and value and checks the head.
func split(key string, b []byte) (head *storev1.StoredRecord, value []byte, err error) {
	begin, end, err := headIn([]byte(key), b)
	if err != nil {
		return nil, nil, err
	}
	head = new(storev1.StoredRecord)
	if err := proto.Unmarshal(b[begin:end], head); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", corrupt(key, "head"), err)
	}
	value = b[end:len(b):len(b)]
	if int64(len(value)) != head.GetValueBytes() || len(value) > math.MaxInt32 || head.GetRevision() < 1 {
		return nil, nil, corrupt(key, "size")
	}
	return head, value, nil
}

// StateOf returns the state of a record from its value. It does not read the record's value.
func StateOf(key string, b []byte) (State, error) {
	r, err := UnmarshalHead(key, b)
	if err != nil {
		return State{}, err
	}
	return stateOf(r), nil
}

// stateOf returns the state of a record, whose value may be left out.
func stateOf(r *parleyv1.Record) State {
	size := store.RecordBytes(r)
	if len(r.GetValue()) == 0 {
		size += int64(r.GetSizeBytes())
	}
	s := State{Revision: r.GetRevision(), Counts: Of(1, size)}
	if IsHidden(r.GetKey()) {
		s.Counts = Counts{Bytes: size}
	}
	if end := r.GetExpireTime(); end != nil {
		s.ExpireTime = end.AsTime()
	}
	return s
}

// Copy returns the value of a record of another conversation, as a new one with that revision, and its state.
func Copy(key string, b []byte, revision int64, now time.Time) ([]byte, State, error) {
	r, err := Unmarshal(key, b)
	if err != nil {
		return nil, State{}, err
	}
	r.Revision, r.UpdateTime, r.ExpireTime = revision, timestamppb.New(now), nil
	value, err := Marshal(r)
	return value, stateOf(r), err
}
