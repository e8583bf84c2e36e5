package store

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Tags of the fields that this file reads and writes: the field number, then three bits with the wire
// type. A test compares them with the descriptors. Apart from FrameField, no other file has numbers of
// fields of the protos.
const (
	varint = uint64(protowire.VarintType)
	length = uint64(protowire.BytesType)

	// Message
	tagID             = 1<<3 | length
	tagSequence       = 2<<3 | varint
	tagRole           = 3<<3 | varint
	tagContent        = 4<<3 | length
	tagStructuredData = 5<<3 | length
	tagToolCalls      = 6<<3 | length
	tagToolResult     = 7<<3 | length
	tagAgent          = 8<<3 | length
	tagSummary        = 9<<3 | length
	tagStatus         = 10<<3 | varint
	tagTurnID         = 11<<3 | length
	tagExchange       = 12<<3 | varint
	tagUsage          = 13<<3 | length
	tagMetadata       = 14<<3 | length
	tagCreateTime     = 15<<3 | length
	tagNative         = 18<<3 | length
	tagReasoning      = 19<<3 | length

	// StructuredData, ToolCall, ToolResult, Native
	tagDataType      = 1<<3 | length
	tagCallID        = 1<<3 | length
	tagResultCallID  = 1<<3 | length
	tagResultName    = 2<<3 | length
	tagResultContent = 3<<3 | length
	tagNativeType    = 1<<3 | length
	tagNativeValue   = 2<<3 | length

	// Usage
	tagModel             = 1<<3 | length
	tagInputTokens       = 2<<3 | varint
	tagOutputTokens      = 3<<3 | varint
	tagCachedInputTokens = 4<<3 | varint
	tagReasoningTokens   = 5<<3 | varint

	// An entry of Message.metadata
	tagKey   = 1<<3 | length
	tagValue = 2<<3 | length

	// Timestamp
	tagSeconds = 1<<3 | varint
	tagNanos   = 2<<3 | varint
)

// Fields has the fields of a Message that are used without decoding the message. To decode it would
// take many times as long. The slices point into the frame, strings may be invalid UTF-8, and messages
// inside the message are encoded. The zero value is an empty message.
type Fields struct {
	Sequence, Exchange              int32
	Role                            parleyv1.Role
	Status                          parleyv1.MessageStatus
	Content, Agent, Summary, TurnID []byte

	StructuredData []Nested // each with its type
	ToolCalls      []Nested // each with its id
	Metadata       [][]byte // see MetadataEntry
	ToolResult     []byte   // nil if the message has none; see ReadResult
	Usage          []byte   // nil if the message has none; see ReadUsage
	Native         []byte   // nil if the message has none; see ReadNative
	CreateTime     []byte   // nil if the message has none; see Time
}

// Nested is an encoded message inside a message.
type Nested struct{ Name, Encoded []byte }

// ResultFields has fields of a ToolResult. Its slices point into the frame.
type ResultFields struct{ CallID, Name, Content []byte }

// NativeFields has the fields of a Native. Its slices point into the frame.
type NativeFields struct{ Type, Value []byte }

// UsageFields has the fields of a Usage. Its slices point into the frame.
type UsageFields struct {
	Model                                                         []byte
	InputTokens, OutputTokens, CachedInputTokens, ReasoningTokens int32
}

// Read replaces f with the fields of the message in a frame. It reuses the memory of the lists in f. It
// returns ErrCorrupt if the frame contains no message, or if structured data or a tool call is damaged.
// As in every protobuf decoder, the last value of a field wins, and messages are merged.
func (f *Fields) Read(frame Frame) error {
	*f = Fields{StructuredData: f.StructuredData[:0], ToolCalls: f.ToolCalls[:0], Metadata: f.Metadata[:0]}
	w := wire{rest: frame.Body()}
	for w.next() {
		switch w.tag {
		case tagSequence:
			f.Sequence = int32(w.number)
		case tagRole:
			f.Role = parleyv1.Role(w.number)
		case tagContent:
			f.Content = w.bytes
		case tagStructuredData:
			f.StructuredData = append(f.StructuredData, w.nested(tagDataType))
		case tagToolCalls:
			f.ToolCalls = append(f.ToolCalls, w.nested(tagCallID))
		case tagToolResult:
			f.ToolResult = merge(f.ToolResult, w.bytes)
		case tagAgent:
			f.Agent = w.bytes
		case tagSummary:
			f.Summary = w.bytes
		case tagStatus:
			f.Status = parleyv1.MessageStatus(w.number)
		case tagTurnID:
			f.TurnID = w.bytes
		case tagExchange:
			f.Exchange = int32(w.number)
		case tagUsage:
			f.Usage = merge(f.Usage, w.bytes)
		case tagMetadata:
			f.Metadata = append(f.Metadata, w.bytes)
		case tagCreateTime:
			f.CreateTime = merge(f.CreateTime, w.bytes)
		case tagNative:
			f.Native = merge(f.Native, w.bytes)
		}
	}
	return w.err
}

// merge returns the encoding of two encoded messages merged into one. a may be nil.
func merge(a, b []byte) []byte {
	if a == nil {
		return b
	}
	return append(slices.Clip(a), b...)
}

// ReadResult returns the tool result; zero if the message has none. It returns ErrCorrupt if the
// result is not a message.
func (f *Fields) ReadResult() (r ResultFields, err error) {
	w := wire{rest: f.ToolResult}
	for w.next() {
		switch w.tag {
		case tagResultCallID:
			r.CallID = w.bytes
		case tagResultName:
			r.Name = w.bytes
		case tagResultContent:
			r.Content = w.bytes
		}
	}
	return r, w.err
}

// ReadUsage returns the usage; zero if the message has none. It returns ErrCorrupt if the usage is not
// a message.
func (f *Fields) ReadUsage() (u UsageFields, err error) {
	w := wire{rest: f.Usage}
	for w.next() {
		switch w.tag {
		case tagModel:
			u.Model = w.bytes
		case tagInputTokens:
			u.InputTokens = int32(w.number)
		case tagOutputTokens:
			u.OutputTokens = int32(w.number)
		case tagCachedInputTokens:
			u.CachedInputTokens = int32(w.number)
		case tagReasoningTokens:
			u.ReasoningTokens = int32(w.number)
		}
	}
	return u, w.err
}

// ReadNative returns the native form; zero if the message has none. It returns ErrCorrupt if the native
// form is not a message.
func (f *Fields) ReadNative() (n NativeFields, err error) {
	w := wire{rest: f.Native}
	for w.next() {
		switch w.tag {
		case tagNativeType:
			n.Type = w.bytes
		case tagNativeValue:
			n.Value = w.bytes
		}
	}
	return n, w.err
}

// Time returns the create time; the Unix epoch if the message has none. It returns ErrCorrupt if the
// create time is not a message.
func (f *Fields) Time() (time.Time, error) {
	var seconds, nanos int64
	w := wire{rest: f.CreateTime}
	for w.next() {
		switch w.tag {
		case tagSeconds:
			seconds = int64(w.number)
		case tagNanos:
			nanos = int64(int32(w.number))
		}
	}
	return time.Unix(seconds, nanos), w.err
}

// MetadataEntry returns the key and value of an encoded entry of the metadata, or ErrCorrupt if it is
// not an entry.
func MetadataEntry(entry []byte) (key, value []byte, err error) {
	w := wire{rest: entry}
	for w.next() {
		switch w.tag {
		case tagKey:
			key = w.bytes
		case tagValue:
			value = w.bytes
		}
	}
	return key, value, w.err
}

// AppendNumbered appends the frame of a message to b: the encoded message, then what the store sets,
// which wins because it comes last. A message without a status is complete.
func AppendNumbered(b, message []byte, status parleyv1.MessageStatus, n *parleyv1.AppendedMessage) []byte {
	if status == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	// Both parts of the time are written even if zero, because a decoder merges messages field by field.
	var timeBuffer, buffer [64]byte // Five numbers of up to ten bytes need less.
	at := appendNumber(timeBuffer[:0], tagSeconds, n.GetCreateTime().GetSeconds())
	at = appendNumber(at, tagNanos, int64(n.GetCreateTime().GetNanos()))
	numbered := appendNumber(buffer[:0], tagSequence, int64(n.GetSequence()))
	numbered = appendNumber(numbered, tagStatus, int64(status))
	numbered = appendNumber(numbered, tagExchange, int64(n.GetExchange()))
	numbered = protowire.AppendBytes(protowire.AppendVarint(numbered, tagCreateTime), at)
	return AppendFrame(b, message, numbered)
}

// WithoutReasoning returns the frames without Message.reasoning. If no message has one, it returns f itself.
func (f Frames) WithoutReasoning() Frames { return f.without(tagReasoning) }

// WithoutNative returns the frames without Message.native and Message.reasoning. If no message has one of them,
// it returns f itself.
func (f Frames) WithoutNative() Frames { return f.without(tagNative, tagReasoning) }

func (f Frames) without(tags ...uint64) Frames {
	var kept Frames // nil until a frame has one of the fields
	at := 0
	for frame := range f.All() {
		short := frame.without(tags)
		if kept == nil && len(short) < len(frame) {
			kept = append(make(Frames, 0, len(f)), f[:at]...)
		}
		if kept != nil {
			kept = append(kept, short...)
		}
		at += len(frame)
	}
	if kept == nil {
		return f
	}
	return append(kept, f[at:]...)
}

// without returns the frame without the fields with these tags. It returns a damaged message as it is.
func (f Frame) without(tags []uint64) Frame {
	body := f.Body()
	var parts [][]byte
	w, from, start := wire{rest: body}, 0, 0 // from is the end of the last removed field, start that of the last field
	for w.next() {
		end := len(body) - len(w.rest)
		if slices.Contains(tags, w.tag) {
			parts, from = append(parts, body[from:start]), end
		}
		start = end
	}
	if from == 0 || w.err != nil {
		return f
	}
	return AppendFrame(nil, append(parts, body[from:])...)
}

func appendNumber(b []byte, tag uint64, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendVarint(b, tag), uint64(v))
}

// FieldNumber returns the number of a field by its name in the proto. It is for variables of packages:
// it panics if the message has no such field.
func FieldNumber(m proto.Message, name protoreflect.Name) protowire.Number {
	field := m.ProtoReflect().Descriptor().Fields().ByName(name)
	if field == nil {
		panic(fmt.Sprintf("%T has no field %q", m, name))
	}
	return field.Number()
}

// wire iterates over the fields of an encoded message.
type wire struct {
	rest   []byte
	tag    uint64 // number and wire type of the current field
	number uint64 // value of the current field if it is a varint
	bytes  []byte // value of the current field if it is length-delimited
	err    error
}

// next advances to the next field and reports whether there is one. After the last field, err is the
// error that ended the iteration, if any.
func (w *wire) next() bool {
	if len(w.rest) == 0 {
		return false
	}
	n := 1
	if w.tag = uint64(w.rest[0]); w.tag < 1<<3 || w.tag >= 1<<7 { // Not the tag of a field from 1 to 15.
		var number protowire.Number
		var kind protowire.Type
		if number, kind, n = protowire.ConsumeTag(w.rest); n < 0 {
			return w.fail(n)
		}
		w.tag = protowire.EncodeTag(number, kind)
	}
	w.rest = w.rest[n:]
	switch kind := protowire.Type(w.tag & 7); kind {
	case protowire.VarintType:
		w.number, n = protowire.ConsumeVarint(w.rest)
	case protowire.BytesType:
		w.bytes, n = protowire.ConsumeBytes(w.rest)
	default:
		n = protowire.ConsumeFieldValue(protowire.Number(w.tag>>3), kind, w.rest)
	}
	if n < 0 {
		return w.fail(n)
	}
	w.rest = w.rest[n:]
	return true
}

// nested returns the current field as a nested message. Its name is the last value of the field with
// that tag.
func (w *wire) nested(name uint64) Nested {
	n, inner := Nested{Encoded: w.bytes}, wire{rest: w.bytes}
	for inner.next() {
		if inner.tag == name {
			n.Name = inner.bytes
		}
	}
	if inner.err != nil {
		w.rest, w.err = nil, inner.err
	}
	return n
}

// fail ends the iteration with the error of a negative result of protowire.
func (w *wire) fail(n int) bool {
	w.rest, w.err = nil, fmt.Errorf("%w: message: %w", ErrCorrupt, protowire.ParseError(n))
	return false
}
