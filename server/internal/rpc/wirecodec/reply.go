// Package wirecodec sends replies that contain stored messages without a copy of the messages.
//
// A store returns a message as a frame: in the form in which a reply contains it. A handler returns a [Reply], which
// has the frames beside a message with all other fields. The codec encodes that message and passes the frames to gRPC
// as they are. gRPC copies them once, to the buffer from which it writes to the connection.
//
// # Memory of frames
//
// The memory of frames is a [mem.Buffer], which says who owns it:
//
//   - [mem.NewBuffer] with a pool: memory into which the store has read for one reply. The pool gets it back when the
//     last reference is freed, and the next read overwrites it. gRPC frees its references when it has compressed the
//     frames, or written them to the connection. If the call or the connection ends before that, gRPC frees them or
//     leaves them to the garbage collector.
//   - [mem.SliceBuffer]: memory that is shared with other readers and never changes, such as that of a cache. It has no
//     owner: freeing it has no effect, and the garbage collector frees it when no reply and no cache has it.
//
// Until the client has received the frames, the reply keeps the complete memory, which may be larger than the frames.
//
// Start at [Reply].
package wirecodec

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// errUsed means that the frames of a reply were already passed on.
var errUsed = errors.New("a reply with frames can be encoded or decoded only once")

// Reply is the reply of a unary call: a message, and frames that are encoded fields of it. Encode it with [Codec], or
// decode it with Decode. Both pass on or free the frames, so only one of them can be called, once. If neither is
// called, the memory of the frames does not return to its pool, and the garbage collector frees it.
type Reply struct {
	rest   proto.Message
	frames mem.BufferSlice
}

// NewReply returns a reply with the fields of rest, followed by frames. It takes over one reference of each buffer. It
// does not check the frames. The caller must not use rest after that.
func NewReply(rest proto.Message, frames ...mem.Buffer) *Reply { return &Reply{rest, frames} }

// take returns the parts of the reply and removes them from it.
func (r *Reply) take() (rest proto.Message, frames mem.BufferSlice, err error) {
	if r.rest == nil {
		return nil, nil, errUsed
	}
	rest, frames = r.rest, r.frames
	// Whoever still has the reply, such as a handler of statistics, must not read memory that was freed.
	r.rest, r.frames = nil, nil
	return rest, frames, nil
}

// Decode decodes the reply into m, for a caller in the same process. It resets m before.
func (r *Reply) Decode(m proto.Message, options proto.UnmarshalOptions) error {
	rest, frames, err := r.take()
	if err != nil {
		return err
	}
	defer frames.Free() // The decoded message does not reference the memory of the frames.
	wire, err := proto.Marshal(rest)
	if err != nil {
		return fmt.Errorf("encode %T: %w", rest, err)
	}
	proto.Reset(m)
	options.Merge = true
	if err := options.Unmarshal(wire, m); err != nil {
		return fmt.Errorf("decode %T: %w", rest, err)
	}
	for _, b := range frames {
		if err := options.Unmarshal(b.ReadOnlyData(), m); err != nil {
			return fmt.Errorf("decode frames of %T: %w", rest, err)
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
	rest, frames, err := r.take()
	if err != nil {
		return nil, err
	}
	data, err := c.CodecV2.Marshal(rest)
	if err != nil {
		frames.Free()
		return nil, err
	}
	return append(data, frames...), nil
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
