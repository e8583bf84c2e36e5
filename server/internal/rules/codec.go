package rules

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// tinyBytes is the encoded size up to which a message needs at most smallBytes in decoded form,
	// whatever it contains.
	tinyBytes = 1 << 10
	// smallBytes is the decoded size up to which [RequestCodec.Unmarshal] decodes a message.
	smallBytes = 256 << 10
	// malformed is the start of a number that does not end: no encoded message.
	malformed = 0xff
)

// Codec returns gRPC's protobuf codec with the decoding of [Unmarshal]. It refuses messages that need
// more than MaxDecodedBytes in decoded form. The client of a remote agent uses it for pieces.
func Codec() encoding.CodecV2 { return newCodec() }

func newCodec() *codec { return &codec{CodecV2: encoding.GetCodecV2(protocodec.Name)} }

// codec encodes with the embedded codec and decodes with [Unmarshal].
type codec struct {
	encoding.CodecV2

	shapes sync.Map // *shape by [protoreflect.MessageDescriptor], of the types of messages so far
}

// Unmarshal decodes data into v, which must be a proto.Message.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return c.decode(b.ReadOnlyData(), m, MaxDecodedBytes)
}

// decode decodes b into m. It returns ErrTooManyValues if that needs more than
// limit bytes.
func (c *codec) decode(b []byte, m proto.Message, limit int64) error {
	if len(b) > tinyBytes {
		if size, err := c.footprint(b, m); err != nil {
			return err
		} else if size > limit {
			return fmt.Errorf("%w: decoded, they need %d bytes, the limit is %d", ErrTooManyValues, size, limit)
		}
	}
	return unmarshal(b, m)
}

// footprint returns how many bytes b needs in decoded form, as the message m.
func (c *codec) footprint(b []byte, m proto.Message) (size int64, err error) {
	message := m.ProtoReflect()
	known, _ := c.shapes.Load(message.Descriptor())
	root, ok := known.(*shape)
	if !ok {
		root = newShape(message, make(map[protoreflect.FullName]*shape))
		c.shapes.Store(message.Descriptor(), root)
	}
	err = root.footprint(b, MaxDepth, &size)
	return size, err
}

// RequestCodec is the codec with which the server receives requests. Like [Codec], it drops unknown
// fields. Unmarshal does not decode large requests, malformed ones, and those of AppendStream, of which
// many are under way: it leaves all their fields in encoded form, as unknown fields. An interceptor or
// handler must call Decode, which decodes them and returns their faults. So the interceptors before it,
// such as authentication, run before the server allocates much memory for a request.
type RequestCodec struct{ codec *codec }

// NewRequestCodec returns a codec for one server.
func NewRequestCodec() *RequestCodec { return &RequestCodec{newCodec()} }

// Name returns the name of gRPC's protobuf codec.
func (c *RequestCodec) Name() string { return c.codec.Name() }

// Marshal encodes v.
func (c *RequestCodec) Marshal(v any) (mem.BufferSlice, error) { return c.codec.Marshal(v) }

// Unmarshal decodes data into v, or leaves that to Decode. v must be a proto.Message.
func (c *RequestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.codec.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	b := buffer.ReadOnlyData()
	if _, streamed := m.(*parleyv1.AppendStreamRequest); streamed {
		m.ProtoReflect().SetUnknown(bytes.Clone(b))
		return nil
	}
	err := c.codec.decode(b, m, smallBytes)
	if err == nil {
		return nil
	}
	proto.Reset(m)
	if len(b) > tinyBytes && errors.Is(err, ErrMalformed) {
		b = []byte{malformed} // Decode returns the same error, without a copy and another scan of the request.
	}
	m.ProtoReflect().SetUnknown(append(protoreflect.RawFields(nil), b...))
	return nil
}

// Decode decodes a request that Unmarshal left in encoded form. Before that, it calls admit with the
// memory in bytes that the request needs, and returns its error. For any other request, Decode does
// nothing. Its own errors are ErrTooManyValues, ErrMalformed and a TooDeepError.
func (c *RequestCodec) Decode(m proto.Message, admit func(bytes int64) error) error {
	b := m.ProtoReflect().GetUnknown()
	if len(b) == 0 {
		return nil
	}
	size, err := c.codec.footprint(b, m)
	if err != nil {
		return err
	}
	if err := admit(size); err != nil {
		return err
	}
	m.ProtoReflect().SetUnknown(nil)
	return unmarshal(b, m)
}

// DecodeNow decodes b into m, unless that needs more than MaxDecodedBytes. The caller limits how many large
// requests it decodes at once.
func (c *RequestCodec) DecodeNow(b []byte, m proto.Message) error {
	return c.codec.decode(b, m, MaxDecodedBytes)
}

// Unmarshal decodes b into m and drops all fields that this version does not know, at every level.
// No rule bounds an unknown field, so it must not be stored.
func Unmarshal(b []byte, m proto.Message) error {
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
}

// unmarshal is like Unmarshal, but returns an error if messages are nested more than MaxDepth deep.
func unmarshal(b []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: MaxDepth}).Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}
