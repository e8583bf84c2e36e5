// Package wirecodec sends replies that contain stored messages without a copy of the messages.
//
// A store returns a message as a frame: in the form in which a reply contains it. A handler returns a [Reply], which
// has the frames beside a message with all other fields. The codec encodes that message and passes the frames to gRPC
// as they are. gRPC copies them once, to the buffer from which it writes to the connection.
//
// The frames may be in the memory of the store's cache, which other readers use, so they must not be changed. Until
// gRPC has copied the frames, the reply keeps all of that memory, which may be larger than the frames.
//
// Start at [Reply].
package wirecodec

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
)

// Reply is the reply of a unary call: a message, and frames that are encoded fields of it. Encode it with [Codec], or
// decode it with Decode.
type Reply struct {
	rest   proto.Message
	frames []store.Frames
}

// NewReply returns a reply with the fields of rest, followed by frames. It does not check the frames. The caller must
// change neither after that.
func NewReply(rest proto.Message, frames ...store.Frames) *Reply { return &Reply{rest, frames} }

// Decode decodes the reply into m, for a caller in the same process. It resets m before. m does not share memory with
// the reply.
func (r *Reply) Decode(m proto.Message, options proto.UnmarshalOptions) error {
	wire, err := proto.Marshal(r.rest)
	if err != nil {
		return fmt.Errorf("encode %T: %w", r.rest, err)
	}
	proto.Reset(m)
	options.Merge = true
	for _, part := range append([]store.Frames{wire}, r.frames...) {
		if err := options.Unmarshal(part, m); err != nil {
			return fmt.Errorf("decode %T: %w", r.rest, err)
		}
	}
	return nil
}

// Codec returns a codec that encodes each *Reply without a copy of its frames. It encodes the rest of a reply, and
// every other message, with inner. It decodes with inner.
func Codec(inner encoding.CodecV2) encoding.CodecV2 { return codec{inner} }

type codec struct{ encoding.CodecV2 }

// Marshal encodes v. The fields of a reply are in the order in which protobuf encodes a message that has the frames as
// unknown fields: the other fields by number, then the frames.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*Reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data, err := c.CodecV2.Marshal(r.rest)
	if err != nil {
		return nil, err
	}
	for _, f := range r.frames {
		data = append(data, mem.SliceBuffer(f)) // Its Free does nothing, so gRPC cannot use the memory again.
	}
	return data, nil
}

// Handler returns the handler of a unary method that returns a Reply. Generated handlers cannot return one. method is
// the full name of the method. The handler ignores the implementation that is registered with gRPC.
func Handler[Q any](method string, call func(context.Context, *Q) (*Reply, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		request := new(Q)
		if err := decode(request); err != nil {
			return nil, err
		}
		handler := func(ctx context.Context, request any) (any, error) {
			q, ok := request.(*Q)
			if !ok {
				return nil, fmt.Errorf("request of %s is a %T, want a %T", method, request, q)
			}
			reply, err := call(ctx, q)
			if err != nil {
				return nil, err
			}
			return reply, nil
		}
		if i == nil {
			return handler(ctx, request)
		}
		return i(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, handler)
	}
}
