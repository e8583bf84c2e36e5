package rules

import (
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec returns gRPC's protobuf codec with the decoding of [Unmarshal]. The server uses it for
// requests. The client of a remote agent uses it for pieces.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(protocodec.Name)} }

// codec encodes with the embedded codec and decodes with [Unmarshal].
type codec struct{ encoding.CodecV2 }

// Unmarshal decodes data into v, which must be a proto.Message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return Unmarshal(b.ReadOnlyData(), m)
}

// Unmarshal decodes b into m and drops all fields that this version does not know, at every level.
// No rule bounds an unknown field, so it must not be stored.
func Unmarshal(b []byte, m proto.Message) error {
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
}
