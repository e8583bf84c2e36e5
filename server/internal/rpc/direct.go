package rpc

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/localstream"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/server/internal/rules"
)

// Direct is a connection to the server for callers in the same process. It has all interceptors around the handlers.
// Call options have no effect. Calls do not pass through a connection of gRPC. That avoids most switches between
// goroutines, which are most of the cost of a small call. Create it with [Server.Direct].
type Direct struct {
	server       *Server
	methods      map[string]grpc.MethodDesc // by full name
	interceptors []grpc.UnaryServerInterceptor
	streams      map[string]grpc.StreamDesc // by full name
	handlers     *localstream.Server        // of the streams
	stream       grpc.StreamServerInterceptor
}

// Direct returns a connection for callers in the same process. Its streams do not limit the time of a send; see
// [Server.LoopbackOptions]. The caller must stop it before the store is closed; the end of ctx has no effect.
func (s *Server) Direct(ctx context.Context) *Direct {
	d := &Direct{
		server: s, methods: make(map[string]grpc.MethodDesc), streams: make(map[string]grpc.StreamDesc),
		interceptors: append(s.unaryInterceptors(fromProcess), s.checkUnary),
		handlers:     localstream.New(ctx, wirecodec.Codec(s.requests.codec), rules.MaxGRPCBytes),
		stream:       chainStream(s.streamInterceptors(fromProcess, s.limitReceives)),
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
		for _, stream := range service.Streams {
			d.streams["/"+service.ServiceName+"/"+stream.StreamName] = stream
		}
	}
	return d
}

// Stop refuses new streams and returns when all of them have ended. When ctx ends, it cancels them.
func (d *Direct) Stop(ctx context.Context) { d.handlers.Stop(ctx) }

// NewStream makes a streaming call. See [localstream.Server.Open].
func (d *Direct) NewStream(
	ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	m, known := d.streams[method]
	if !known {
		return nil, unknownMethod(method)
	}
	info := &grpc.StreamServerInfo{
		FullMethod: method, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams,
	}
	return d.handlers.Open(ctx, &m, func(stream grpc.ServerStream) error {
		return d.stream(d.server, stream, info, m.Handler)
	})
}

func unknownMethod(method string) error {
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// chainStream returns an interceptor that calls interceptors, of which the first is the outermost.
func chainStream(interceptors []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		for _, interceptor := range slices.Backward(interceptors) {
			inner := handler
			handler = func(srv any, stream grpc.ServerStream) error { return interceptor(srv, stream, info, inner) }
		}
		return handler(srv, stream)
	}
}

// Invoke makes a unary call.
func (d *Direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	m, known := d.methods[method]
	sent, sendable := args.(proto.Message)
	received, receivable := reply.(proto.Message)
	if !known {
		return unknownMethod(method)
	}
	if !sendable || !receivable {
		return status.Errorf(codes.Internal, "%s: the request is a %T and the reply a %T, both must be messages", method,
			args, reply)
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
func (d *Direct) intercept(
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
