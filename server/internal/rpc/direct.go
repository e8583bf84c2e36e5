package rpc

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/server/internal/rules"
)

// Direct returns a connection to the server for callers in the same process. It makes unary calls in
// the caller's goroutine, with all interceptors around the handler. Call options have no effect on
// them. This avoids two switches between goroutines, which are most of the cost of a small call.
//
// Streaming calls use streams, a connection to a grpc.Server with this server's services.
func (s *Server) Direct(streams grpc.ClientConnInterface) grpc.ClientConnInterface {
	d := &directConn{
		ClientConnInterface: streams, server: s,
		methods: make(map[string]grpc.MethodDesc), interceptors: append(s.unaryInterceptors(fromProcess), s.checkUnary),
	}
	for _, service := range []*grpc.ServiceDesc{
		&parleyv1.ConversationService_ServiceDesc,
		&parleyv1.RecordService_ServiceDesc,
		&parleyv1.InteractionLogService_ServiceDesc,
		&parleyv1.AdminService_ServiceDesc,
	} {
		for _, method := range s.methods(service) {
			d.methods["/"+service.ServiceName+"/"+method.MethodName] = method
		}
	}
	return d
}

// directConn is a connection that makes unary calls in the caller's goroutine.
type directConn struct {
	grpc.ClientConnInterface
	server       *Server
	methods      map[string]grpc.MethodDesc // by full name
	interceptors []grpc.UnaryServerInterceptor
}

// Invoke makes a unary call.
func (d *directConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	m, known := d.methods[method]
	sent, sendable := args.(proto.Message)
	received, receivable := reply.(proto.Message)
	if !known || !sendable || !receivable { // The other connection returns the error.
		return d.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	header, _ := metadata.FromOutgoingContext(ctx)
	result, err := m.Handler(d.server, metadata.NewIncomingContext(ctx, header), func(request any) error {
		if err := recode(request, sent, d.server.requests.codec.DecodeNow); err != nil {
			return d.server.toStatus(ctx, method, err)
		}
		return nil
	}, d.intercept)
	if err != nil {
		return err
	}
	if encoded, ok := result.(*wirecodec.Reply); ok {
		return encoded.Decode(received, proto.UnmarshalOptions{DiscardUnknown: true})
	}
	return recode(received, result, rules.Unmarshal)
}

// recode copies a message by encoding and decoding it. A reply may contain fields in encoded form,
// and a handler must not change the caller's request. Like [rules.Codec], recode drops the fields
// that this version does not know.
func recode(to, from any, decode func([]byte, proto.Message) error) error {
	source, isMessage := from.(proto.Message)
	target, isTarget := to.(proto.Message)
	if !isMessage || !isTarget {
		return fmt.Errorf("cannot copy %T to %T: both must be messages", from, to)
	}
	wire, err := proto.Marshal(source)
	if err != nil {
		return fmt.Errorf("encode %T: %w", from, err)
	}
	return decode(wire, target)
}

// intercept calls a handler with the interceptors around it.
func (d *directConn) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	return chain(d.interceptors, info, handler)(ctx, request)
}

// chain returns a handler with interceptors around it, the first of which is the outermost.
func chain(
	interceptors []grpc.UnaryServerInterceptor, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) grpc.UnaryHandler {
	for _, interceptor := range slices.Backward(interceptors) {
		inner := handler
		handler = func(ctx context.Context, request any) (any, error) {
			return interceptor(ctx, request, info, inner)
		}
	}
	return handler
}
