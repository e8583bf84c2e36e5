package rpc

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

// Direct returns a connection to the server for callers in the same process. Unary calls are
// made right here, with all interceptors around the handler, in the caller's goroutine; call
// options have no effect on them. That spares what costs most of a small call, to be carried
// to another goroutine and back. Streams, which have two ends, go over streams, a connection
// to a grpc.Server with this server's services.
func (s *Server) Direct(streams grpc.ClientConnInterface) grpc.ClientConnInterface {
	d := &direct{ClientConnInterface: streams, server: s, methods: make(map[string]grpc.MethodDesc), chain: s.unaryInterceptors()}
	for _, service := range []*grpc.ServiceDesc{
		&parleyv1.ConversationService_ServiceDesc, &parleyv1.InteractionLogService_ServiceDesc, &parleyv1.AdminService_ServiceDesc,
	} {
		for _, method := range service.Methods {
			d.methods["/"+service.ServiceName+"/"+method.MethodName] = method
		}
	}
	return d
}

type direct struct {
	grpc.ClientConnInterface
	server  *Server
	methods map[string]grpc.MethodDesc // by full name
	chain   []grpc.UnaryServerInterceptor
}

// Invoke makes a unary call.
func (d *direct) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	m, isOurs := d.methods[method]
	sent, sendable := args.(proto.Message)
	received, receivable := reply.(proto.Message)
	if !isOurs || !sendable || !receivable { // It is for the other end to say what is wrong.
		return d.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	header, _ := metadata.FromOutgoingContext(ctx)
	result, err := m.Handler(d.server, metadata.NewIncomingContext(ctx, header), func(request any) error {
		return recode(request, sent)
	}, d.intercept)
	if err != nil {
		return err
	}
	return recode(received, result)
}

// recode copies a message as the wire does: a reply may hold parts that are encoded already,
// and a request must not be the caller's own. Both lose the fields that this version does
// not know, as a request does that [rules.Codec] decodes.
func recode(to, from any) error {
	source, isMessage := from.(proto.Message)
	target, isTarget := to.(proto.Message)
	if !isMessage || !isTarget {
		return fmt.Errorf("%T to %T: not both are messages", from, to)
	}
	wire, err := proto.Marshal(source)
	if err != nil {
		return fmt.Errorf("encode %T: %w", from, err)
	}
	return rules.Unmarshal(wire, target)
}

// intercept runs the interceptors around a handler.
func (d *direct) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	for _, interceptor := range slices.Backward(d.chain) {
		inner := handler
		handler = func(ctx context.Context, request any) (any, error) { return interceptor(ctx, request, info, inner) }
	}
	return handler(ctx, request)
}
