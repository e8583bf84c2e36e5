package client

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The interceptors run once for each call, before gRPC's retries, so that all attempts carry the same request_id.

func requestIDUnary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if message, ok := request.(proto.Message); ok {
		request = withRequestID(message)
	}
	return explainSize(invoke(ctx, method, request, reply, conn, opts...), request)
}

func requestIDStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	return requestIDClientStream{stream}, nil
}

type requestIDClientStream struct{ grpc.ClientStream }

// SendMsg sets an empty request_id and sends request. The generated stubs call it for each request of the stream.
func (s requestIDClientStream) SendMsg(request any) error {
	switch message := request.(type) {
	case *parleyv1.AppendStreamRequest:
		if filled := withRequestID(message.GetAppend()); filled != message.GetAppend() {
			request = &parleyv1.AppendStreamRequest{Append: filled}
		}
	case proto.Message:
		request = withRequestID(message)
	}
	return explainSize(s.ClientStream.SendMsg(request), request)
}

// explainSize returns a clear error in place of err if gRPC refused request because it is too large.
func explainSize(err error, request any) error {
	message, ok := request.(proto.Message)
	if !ok || status.Code(err) != codes.ResourceExhausted || Reason(err) != "" {
		return err
	}
	if size := proto.Size(message); size > MaxGRPCBytes {
		return tooLarge(size, MaxGRPCBytes)
	}
	return err
}

// tooLarge returns the error of a request of size bytes.
func tooLarge(size, limit int) error {
	return status.Errorf(codes.ResourceExhausted,
		"the request has %d bytes, the limit is %d; send fewer or smaller messages and records", size, limit)
}

// withRequestID returns a copy of request with a random request_id if its request_id is empty.
// Otherwise it returns request itself.
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
