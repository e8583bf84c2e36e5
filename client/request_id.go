package client

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Interceptors run once a call, ahead of gRPC's retries, so each attempt has the same id.

func fillUnary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if message, ok := request.(proto.Message); ok {
		request = withRequestID(message)
	}
	return invoke(ctx, method, request, reply, conn, opts...)
}

func fillStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	return fillingStream{stream}, nil
}

type fillingStream struct{ grpc.ClientStream }

// SendMsg is called by the generated stubs with each request of the stream.
func (s fillingStream) SendMsg(request any) error {
	if message, ok := request.(proto.Message); ok {
		request = withRequestID(message)
	}
	return s.ClientStream.SendMsg(request)
}

// withRequestID returns request itself, or a copy with a random request_id when it has an
// empty one.
func withRequestID[M proto.Message](request M) M {
	fields := request.ProtoReflect()
	field := fields.Descriptor().Fields().ByName("request_id")
	if field == nil || !fields.IsValid() || fields.Has(field) {
		return request
	}
	filled := proto.CloneOf(request)
	filled.ProtoReflect().Set(field, protoreflect.ValueOfString(uuid.NewString()))
	return filled
}
