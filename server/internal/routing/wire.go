package routing

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Tags of the fields that a summary needs: fields of Message, and field 1 of the messages in it.
const (
	tagSequence       = 2<<3 | uint64(protowire.VarintType)
	tagRole           = 3<<3 | uint64(protowire.VarintType)
	tagContent        = 4<<3 | uint64(protowire.BytesType)
	tagStructuredData = 5<<3 | uint64(protowire.BytesType)
	tagToolCall       = 6<<3 | uint64(protowire.BytesType)
	tagToolResult     = 7<<3 | uint64(protowire.BytesType)
	tagAgent          = 8<<3 | uint64(protowire.BytesType)
	tagSummary        = 9<<3 | uint64(protowire.BytesType)
	tagCreateTime     = 15<<3 | uint64(protowire.BytesType)

	// tagName is the tag of StructuredData.type, ToolCall.id and ToolResult.call_id.
	tagName = 1<<3 | uint64(protowire.BytesType)
)

// referencedData is the field number of ReferencedData.data.
const referencedData protowire.Number = 3

// message has the fields of a message that a summary needs, read without decoding the message. To
// decode it would cost many times as much: a summary uses few fields, and most of them in encoded
// form. The byte slices refer to the memory of the frame.
type message struct {
	sequence                int32
	role                    parleyv1.Role
	agent, summary, content []byte
	data, calls             []nested
	resultCallID            []byte // ToolResult.call_id
	createTime              []byte // encoded
}

// nested is an encoded message inside a message. name is its type or id.
type nested struct{ name, encoded []byte }

// read replaces m with the message in a frame. It returns store.ErrCorrupt if the frame contains no
// message. It treats repeated occurrences of a singular field as every protobuf decoder does: the
// last scalar wins, and messages are merged.
func (m *message) read(frame store.Frame) error {
	*m = message{data: m.data[:0], calls: m.calls[:0]} // Reuse the memory of the lists.
	f := fieldReader{rest: frame.Body()}
	for f.next() {
		switch f.tag {
		case tagSequence:
			m.sequence = int32(f.number)
		case tagRole:
			m.role = parleyv1.Role(f.number)
		case tagContent:
			m.content = f.bytes
		case tagStructuredData:
			m.data = append(m.data, f.nested())
		case tagToolCall:
			m.calls = append(m.calls, f.nested())
		case tagToolResult:
			if result := f.nested(); result.name != nil {
				m.resultCallID = result.name
			}
		case tagAgent:
			m.agent = f.bytes
		case tagSummary:
			m.summary = f.bytes
		case tagCreateTime:
			m.createTime = merge(m.createTime, f.bytes)
		}
	}
	return f.err
}

// merge returns the encoding of two encoded messages merged into one. a may be nil.
func merge(a, b []byte) []byte {
	if a == nil {
		return b
	}
	return append(slices.Clip(a), b...)
}

// fieldReader reads an encoded message field by field.
type fieldReader struct {
	rest   []byte
	tag    uint64 // number and wire type of the current field
	number uint64 // value of the current field if it is a varint
	bytes  []byte // value of the current field if it is length-delimited
	err    error
}

// next advances to the next field and reports whether there is one. After the last field, err is the
// error that ended the reading, if any.
func (f *fieldReader) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		return f.fail(n)
	}
	f.tag, f.rest = protowire.EncodeTag(number, kind), f.rest[n:]
	switch kind {
	case protowire.VarintType:
		f.number, n = protowire.ConsumeVarint(f.rest)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(f.rest)
	default:
		n = protowire.ConsumeFieldValue(number, kind, f.rest)
	}
	if n < 0 {
		return f.fail(n)
	}
	f.rest = f.rest[n:]
	return true
}

// fail ends the reading with the error of a negative result of protowire.
func (f *fieldReader) fail(n int) bool {
	f.rest, f.err = nil, fmt.Errorf("%w: message: %w", store.ErrCorrupt, protowire.ParseError(n))
	return false
}

// nested returns the current field as a nested message.
func (f *fieldReader) nested() nested {
	n, inner := nested{encoded: f.bytes}, fieldReader{rest: f.bytes}
	for inner.next() {
		if inner.tag == tagName {
			n.name = inner.bytes
		}
	}
	if inner.err != nil {
		f.rest, f.err = nil, inner.err
	}
	return n
}
