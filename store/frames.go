package store

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// FrameField is the field number of `repeated Message messages` in every reply that returns kept
// messages. Messages are stored with this field number, so that a reply can contain them without
// decoding and encoding them again.
const FrameField protowire.Number = 2

// Frame is one message in the form in which a reply contains it: the tag of FrameField, the length,
// the encoded Message.
type Frame []byte

// frameTag is the first byte of every frame.
const frameTag = byte(FrameField)<<3 | byte(protowire.BytesType)

// Frames is a sequence of frames, one directly after the other.
type Frames []byte

// All yields the frames in order. It stops at the first damaged frame; a store checks its records
// before it returns frames.
func (f Frames) All() iter.Seq[Frame] {
	return func(yield func(Frame) bool) {
		for rest := f; len(rest) > 0 && rest[0] == frameTag; {
			n := protowire.ConsumeFieldValue(FrameField, protowire.BytesType, rest[1:])
			if n < 0 || !yield(Frame(rest[:n+1])) {
				return
			}
			rest = rest[n+1:]
		}
	}
}

// Count returns the number of frames.
func (f Frames) Count() int {
	n := 0
	for range f.All() {
		n++
	}
	return n
}

// Skip returns the frames without the first n.
func (f Frames) Skip(n int) Frames {
	for frame := range f.All() {
		if n <= 0 {
			break
		}
		n--
		f = f[len(frame):]
	}
	return f
}

// Newest returns the last n frames. If n is negative, it returns all frames.
func (f Frames) Newest(n int) Frames {
	if n < 0 {
		return f
	}
	return f.Skip(f.Count() - n)
}

// Messages decodes the frames.
func (f Frames) Messages() ([]*parleyv1.Message, error) {
	messages := make([]*parleyv1.Message, 0, f.Count())
	for frame := range f.All() {
		m, err := frame.Message()
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// Body returns the encoded Message inside the frame.
func (f Frame) Body() []byte {
	body, _ := protowire.ConsumeBytes(f[min(1, len(f)):])
	return body
}

// Message decodes the frame.
func (f Frame) Message() (*parleyv1.Message, error) {
	m := new(parleyv1.Message)
	if err := proto.Unmarshal(f.Body(), m); err != nil {
		return nil, fmt.Errorf("%w: message: %w", ErrCorrupt, err)
	}
	return m, nil
}

// Sequence returns Message.sequence without decoding the other fields; 0 if the field is not set.
func (f Frame) Sequence() int32 {
	var sequence int32
	for w := (wire{rest: f.Body()}); w.next(); {
		if w.tag == tagSequence {
			sequence = int32(w.number) // The store appends its own value last, and the last value wins.
		}
	}
	return sequence
}

// ID returns Message.id without decoding the other fields; nil if the field is not set. The slice points into
// the frame.
func (f Frame) ID() (id []byte) {
	for w := (wire{rest: f.Body()}); w.next(); {
		if w.tag == tagID {
			id = w.bytes
		}
	}
	return id
}

// AppendFrame appends a frame to b. The parts together are the encoded Message.
func AppendFrame(b []byte, parts ...[]byte) []byte {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	b = protowire.AppendVarint(append(b, frameTag), uint64(size))
	for _, part := range parts {
		b = append(b, part...)
	}
	return b
}

// EncodeFrame encodes a message as a frame. It returns an error if a text is not valid UTF-8.
func EncodeFrame(m *parleyv1.Message) (Frame, error) {
	size := proto.Size(m)
	frame := append(make([]byte, 0, 1+protowire.SizeBytes(size)), frameTag)
	frame = protowire.AppendVarint(frame, uint64(size))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(frame, m)
}

// RecordFrames is a sequence of records in the form in which a GetRecordsResponse contains them. Each consists of the
// tag of the field records, the length, and the encoded Record. The zero value is an empty sequence.
type RecordFrames []byte

// Append appends a record and returns the longer sequence, as the built-in append does. r is the record without its
// value. Append returns an error if a text of r is not valid UTF-8.
func (f RecordFrames) Append(r *parleyv1.Record, value []byte) (RecordFrames, error) {
	const recordsField, valueField = 1, 3
	size := proto.Size(r)
	full := size
	if len(value) > 0 {
		full += protowire.SizeTag(valueField) + protowire.SizeBytes(len(value))
	}
	if f == nil {
		f = make(RecordFrames, 0, protowire.SizeTag(recordsField)+protowire.SizeBytes(full))
	}
	b := protowire.AppendVarint(protowire.AppendTag(f, recordsField, protowire.BytesType), uint64(full))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, r)
	if err != nil {
		return f, fmt.Errorf("encode record: %w", err)
	}
	if len(value) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, valueField, protowire.BytesType), value)
	}
	return b, nil
}

// Records decodes the records. They do not share memory with f. If f is damaged, the error is ErrCorrupt.
func (f RecordFrames) Records() ([]*parleyv1.Record, error) {
	reply := new(parleyv1.GetRecordsResponse)
	if err := proto.Unmarshal(f, reply); err != nil {
		return nil, fmt.Errorf("%w: records: %w", ErrCorrupt, err)
	}
	return reply.GetRecords(), nil
}
