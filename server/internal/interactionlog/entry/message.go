package entry

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Message has the fields of a Message that an entry needs. Its slices point into the encoded message.
type Message struct {
	role               parleyv1.Role
	status             parleyv1.MessageStatus
	sequence, exchange int32
	seconds, nanos     int64 // create_time
	content            []byte
	agent, turnID      []byte
	tool, result       []byte // name and content of a tool's result
	model              []byte
	tokens             [4]int32 // see tokenNames
	types              [][]byte // of structured data
	metadata           []pair
}

// Sequence returns the message's sequence.
func (m *Message) Sequence() int32 { return m.sequence }

// Time returns the message's create_time.
func (m *Message) Time() time.Time { return time.Unix(m.seconds, m.nanos) }

// pair is a key of a message's metadata with its value.
type pair struct{ key, value []byte }

// Decode decodes an encoded Message. It copies nothing and reuses the memory of m, because the generated
// code would take longer than all other work on an entry. As protobuf requires, the last value of a field
// wins, and fields of a message that occurs twice are merged. Strings may be invalid UTF-8.
func (m *Message) Decode(body []byte) error {
	*m = Message{types: m.types[:0], metadata: m.metadata[:0]}
	f := wireFields{rest: body}
	for f.next() {
		switch f.tag {
		case 2<<3 | wireNumber:
			m.sequence = int32(f.number)
		case 3<<3 | wireNumber:
			m.role = parleyv1.Role(int32(f.number))
		case 4<<3 | wireBytes:
			m.content = f.bytes
		case 5<<3 | wireBytes:
			m.decodeData(&f)
		case 7<<3 | wireBytes:
			m.decodeResult(&f)
		case 8<<3 | wireBytes:
			m.agent = f.bytes
		case 10<<3 | wireNumber:
			m.status = parleyv1.MessageStatus(int32(f.number))
		case 11<<3 | wireBytes:
			m.turnID = f.bytes
		case 12<<3 | wireNumber:
			m.exchange = int32(f.number)
		case 13<<3 | wireBytes:
			m.decodeUsage(&f)
		case 14<<3 | wireBytes:
			m.decodeMetadata(&f)
		case 15<<3 | wireBytes:
			m.decodeTime(&f)
		}
	}
	return f.err
}

func (m *Message) decodeData(outer *wireFields) {
	var name []byte
	f := wireFields{rest: outer.bytes}
	for f.next() {
		if f.tag == 1<<3|wireBytes {
			name = f.bytes
		}
	}
	m.types, outer.err = append(m.types, name), f.err
}

func (m *Message) decodeResult(outer *wireFields) {
	f := wireFields{rest: outer.bytes}
	for f.next() {
		switch f.tag {
		case 2<<3 | wireBytes:
			m.tool = f.bytes
		case 3<<3 | wireBytes:
			m.result = f.bytes
		}
	}
	outer.err = f.err
}

func (m *Message) decodeUsage(outer *wireFields) {
	f := wireFields{rest: outer.bytes}
	for f.next() {
		switch f.tag {
		case 1<<3 | wireBytes:
			m.model = f.bytes
		case 2<<3 | wireNumber, 3<<3 | wireNumber, 4<<3 | wireNumber, 5<<3 | wireNumber:
			m.tokens[f.tag>>3-2] = int32(f.number)
		}
	}
	outer.err = f.err
}

func (m *Message) decodeMetadata(outer *wireFields) {
	var p pair
	f := wireFields{rest: outer.bytes}
	for f.next() {
		switch f.tag {
		case 1<<3 | wireBytes:
			p.key = f.bytes
		case 2<<3 | wireBytes:
			p.value = f.bytes
		}
	}
	m.metadata, outer.err = append(m.metadata, p), f.err
}

func (m *Message) decodeTime(outer *wireFields) {
	f := wireFields{rest: outer.bytes}
	for f.next() {
		switch f.tag {
		case 1<<3 | wireNumber:
			m.seconds = int64(f.number)
		case 2<<3 | wireNumber:
			m.nanos = int64(int32(f.number))
		}
	}
	outer.err = f.err
}

// Wire types of the fields that decode reads.
const (
	wireNumber = uint64(protowire.VarintType)
	wireBytes  = uint64(protowire.BytesType)
)

// wireFields iterates over the fields of an encoded message.
type wireFields struct {
	rest   []byte
	tag    uint64 // field number<<3 | wire type
	number uint64 // value of a field with wireNumber
	bytes  []byte // value of a field with wireBytes
	err    error
}

// next advances to the next field with one of the two wire types. It returns false at the end and after
// an error, which is in f.err.
func (f *wireFields) next() bool {
	for len(f.rest) > 0 && f.err == nil {
		number, kind, n := protowire.ConsumeTag(f.rest)
		if n < 0 {
			f.err = protowire.ParseError(n)
			return false
		}
		f.tag, f.rest = uint64(number)<<3|uint64(kind), f.rest[n:]
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(f.rest)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(f.rest)
		default:
			n = protowire.ConsumeFieldValue(number, kind, f.rest)
		}
		if n < 0 {
			f.err = protowire.ParseError(n)
			return false
		}
		f.rest = f.rest[n:]
		if kind == protowire.VarintType || kind == protowire.BytesType {
			return true
		}
	}
	return false
}
