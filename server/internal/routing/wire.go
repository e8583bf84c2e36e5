package routing

import (
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
)

// The tags of what is read: fields of Message, and the first of the messages in it.
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

	// tagName is StructuredData.type, ToolCall.id and ToolResult.call_id.
	tagName = 1<<3 | uint64(protowire.BytesType)
)

// referencedData is the number of ReferencedData.data.
const referencedData protowire.Number = 3

// message is what a summary needs of one. It is not decoded for that, which would cost many
// times as much: most of a message goes into no summary, and what does goes as it is. The
// bytes are the frame's.
type message struct {
	sequence                int32
	role                    parleyv1.Role
	agent, summary, content []byte
	data, calls             []part
	answers                 []byte // id of the call that the message is the result of
	createTime              []byte // encoded
}

// part is an encoded message inside a message, with its name: its type or id.
type part struct{ name, encoded []byte }

// read reads a message in place of the one before; store.ErrCorrupt when it is none. What
// comes twice it takes as any decoder does: of values the last counts, messages are merged.
func (m *message) read(frame store.Frame) error {
	*m = message{data: m.data[:0], calls: m.calls[:0]} // Their memory serves again.
	f := fields{rest: frame.Body()}
	for f.next() {
		switch f.tag {
		case tagSequence:
			m.sequence = int32(f.number)
		case tagRole:
			m.role = parleyv1.Role(f.number)
		case tagContent:
			m.content = f.bytes
		case tagStructuredData:
			m.data = append(m.data, f.part())
		case tagToolCall:
			m.calls = append(m.calls, f.part())
		case tagToolResult:
			if result := f.part(); result.name != nil {
				m.answers = result.name
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

// merge makes one of two encoded messages, the first of which may be none.
func merge(a, b []byte) []byte {
	if a == nil {
		return b
	}
	return append(slices.Clip(a), b...)
}

// fields reads an encoded message field by field.
type fields struct {
	rest   []byte
	tag    uint64 // of the field: number and kind
	number uint64 // its value, if that is a varint
	bytes  []byte // its value, if that is bytes
	err    error
}

// next goes on to the next field, and reports whether there is one.
func (f *fields) next() bool {
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

// fail ends the reading with what protowire says.
func (f *fields) fail(n int) bool {
	f.rest, f.err = nil, fmt.Errorf("%w: message: %w", store.ErrCorrupt, protowire.ParseError(n))
	return false
}

// part is the message that the field holds.
func (f *fields) part() part {
	p, inner := part{encoded: f.bytes}, fields{rest: f.bytes}
	for inner.next() {
		if inner.tag == tagName {
			p.name = inner.bytes
		}
	}
	if inner.err != nil {
		f.rest, f.err = nil, inner.err
	}
	return p
}
