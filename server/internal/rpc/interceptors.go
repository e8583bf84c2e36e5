package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/rpc/receive"
	"github.com/parleyhq/parley/server/internal/rpc/slowstream"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
)

// maxUnaryTime is the maximum deadline of a unary call. Clients may set any deadline.
const maxUnaryTime = 10 * time.Minute

// ServerOptions returns the options that a grpc.Server needs to serve s: a codec, and interceptors around every
// handler. The codec is [rules.RequestCodec], which drops the unknown fields of requests, with the replies of
// [wirecodec.Codec].
//
// The order of the interceptors is, from the outermost: metrics, trace, log, status, recovery, authentication,
// limits of the tenant, limits of time, validation. The status interceptor is near the outside, because it is the
// only one that makes statuses. The limits of time of a stream come before recovery, because they run
// the inner interceptors in another goroutine. A call without a valid credential is refused before its request
// arrives, also if the call is no stream: [Server.Registrar] runs the interceptors up to authentication before it.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return append(s.serverOptions(fromNetwork, s.limitStream), grpc.InTapHandle(receive.Tap))
}

// LoopbackOptions returns the ServerOptions of a grpc.Server whose clients are in this process and
// forward streams to clients of their own, such as the MCP tools. These options do not limit the time
// of a send. While a client forwards a large message to a slow client of its own, the next message
// waits in this server, which cannot know how long that takes. So the forwarding client must end a
// stream whose own client does not read.
func (s *Server) LoopbackOptions() []grpc.ServerOption {
	return s.serverOptions(fromProcess, s.limitReceives)
}

func (s *Server) serverOptions(from source, slow grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wirecodec.Codec(s.requests.codec)),
		grpc.ChainUnaryInterceptor(s.unaryInterceptors(from)...),
		grpc.ChainStreamInterceptor(s.streamInterceptors(from, slow)...),
	}
}

func (s *Server) streamInterceptors(from source, slow grpc.StreamServerInterceptor) []grpc.StreamServerInterceptor {
	streams := []grpc.StreamServerInterceptor{
		s.calls.Stream(from == fromProcess), s.statusStream, slow,
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandler(panicError)),
		s.authStream(from), s.tenantStream, s.validateStream, acceptStream,
	}
	if s.tracer != nil {
		streams = slices.Insert(streams, 0, s.tracer.Stream(from == fromProcess, codeOf))
	}
	if s.outerStream != nil {
		streams = slices.Insert(streams, 0, s.outerStream)
	}
	return streams
}

func (s *Server) unaryInterceptors(from source) []grpc.UnaryServerInterceptor {
	return append(s.callInterceptors(from), s.authUnary(from))
}

// callInterceptors returns the outer interceptors of a unary call, without the one that authenticates the caller. They
// are also those of a request of AppendStream, whose caller was authenticated with the stream.
func (s *Server) callInterceptors(from source) []grpc.UnaryServerInterceptor {
	unary := []grpc.UnaryServerInterceptor{
		s.calls.Unary(from == fromProcess), s.statusUnary,
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandler(panicError)),
	}
	if s.tracer != nil {
		unary = slices.Insert(unary, 0, s.tracer.Unary(from == fromProcess, codeOf))
	}
	if s.outerUnary != nil {
		unary = slices.Insert(unary, 0, s.outerUnary)
	}
	return unary
}

// panicError returns an error for a recovered panic, with the stack for the log.
func panicError(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

func (s *Server) statusUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	reply, err := handler(ctx, request)
	if err != nil {
		return nil, s.toStatus(ctx, info.FullMethod, err)
	}
	return reply, nil
}

func (s *Server) statusStream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if err := handler(srv, stream); err != nil {
		return s.toStatus(stream.Context(), info.FullMethod, err)
	}
	return nil
}

// principalKey is the context key of the caller's principal. The authentication interceptor sets it.
// Handlers read the tenant from it and pass the tenant on as a parameter.
type principalKey struct{}

// sourceKey is the context key of the source of a stream. The authentication interceptor sets it.
type sourceKey struct{}

// principal returns the caller.
func principal(ctx context.Context) auth.Principal {
	p, _ := ctx.Value(principalKey{}).(auth.Principal)
	return p
}

// tenant returns the tenant of the caller.
func tenant(ctx context.Context) string { return principal(ctx).Tenant }

// authUnary adds the caller to the context of a call. It rejects callers that may not call the method.
func (s *Server) authUnary(from source) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		credentials := s.credentials(ctx, from)
		p, err := s.authorize(ctx, info.FullMethod, from, credentials)
		if err != nil {
			return nil, err
		}
		return handler(auth.WithCredentials(context.WithValue(ctx, principalKey{}, p), credentials), request)
	}
}

// authStream does the same for a stream. It ends the stream when the caller's credential is no longer valid.
func (s *Server) authStream(from source) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, credentials := stream.Context(), s.credentials(stream.Context(), from)
		p, err := s.authorize(ctx, info.FullMethod, from, credentials)
		if err != nil {
			return err
		}
		if !p.Expires.IsZero() {
			expires := metadata.Pairs(auth.ExpiresKey, p.Expires.UTC().Format(time.RFC3339))
			if err := stream.SetHeader(expires); err != nil {
				return err
			}
		}
		ctx = context.WithValue(context.WithValue(ctx, principalKey{}, p), sourceKey{}, from)
		ctx = auth.WithCredentials(ctx, credentials)
		ctx, release := s.auth.Follow(ctx, info.FullMethod, credentials, p)
		defer release()
		// The handler may wait in RecvMsg or SendMsg, which do not notice that ctx has ended.
		limited, ok := stream.(*slowstream.Stream)
		switch {
		case ok:
			stop := context.AfterFunc(ctx, func() {
				if cause := context.Cause(ctx); errors.Is(cause, auth.ErrUnauthenticated) {
					limited.Abort(cause)
				}
			})
			defer stop()
		case s.auth.Required():
			stream = slowstream.Interruptible(ctx, stream)
		}
		caller := &callerStream{ServerStream: stream, ctx: ctx}
		if !info.IsClientStream { // A client stream may wait for its next request; slowstream limits how long.
			caller.receives = s.receives(info.FullMethod)
		}
		err = handler(srv, caller)
		if cause := context.Cause(ctx); errors.Is(cause, auth.ErrUnauthenticated) {
			return cause // It is the reason why the handler returned.
		}
		return err
	}
}

// callerStream is a stream whose context contains the caller's principal.
type callerStream struct {
	grpc.ServerStream
	ctx      context.Context
	receives *receive.Limiter // of the only request, or nil
}

// Context returns the context with the caller's principal.
func (s *callerStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message.
func (s *callerStream) RecvMsg(m any) error {
	if s.receives == nil {
		return s.ServerStream.RecvMsg(m)
	}
	return s.receives.Receive(s.ctx, func() error { return s.ServerStream.RecvMsg(m) })
}

func (s *Server) limitUnary(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= maxUnaryTime {
		return handler(ctx, request) // Another timer would never fire.
	}
	ctx, cancel := context.WithTimeout(ctx, maxUnaryTime)
	defer cancel()
	return handler(ctx, request)
}

// limitStream ends a stream whose client does not read, or does not send the next request.
func (s *Server) limitStream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if info.FullMethod == parleyv1.ConversationService_WatchConversations_FullMethodName {
		return handler(srv, stream) // A slow watcher blocks nothing: the hub drops changes and sends a GAP.
	}
	if info.FullMethod == healthv1.Health_Watch_FullMethodName {
		defer s.healthWatches.Add(-1)
		if s.healthWatches.Add(1) > maxHealthWatches {
			// Clients that watch the health then count the server as healthy, and can still call it.
			return status.Error(codes.Unimplemented, "too many clients watch the health of the server; use Check")
		}
	}
	return slowstream.Limit(srv, stream, handler)
}

// limitReceives ends a stream whose client does not send the next request.
func (s *Server) limitReceives(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if !info.IsClientStream {
		return handler(srv, stream)
	}
	return slowstream.LimitReceives(srv, stream, handler)
}

// countsElsewhere reports whether the limits of the tenant apply to a call elsewhere: at the server that passes it on,
// or to the calls that it makes.
func (s *Server) countsElsewhere(ctx context.Context, method string) bool {
	return s.isPassedOn(ctx) || strings.HasPrefix(method, auth.A2AService)
}

// tenantUnary refuses a call that exceeds a limit of its tenant. Health checks and calls of administrators of the
// server have no tenant.
func (s *Server) tenantUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	name := tenant(ctx)
	if name == "" || s.countsElsewhere(ctx, info.FullMethod) {
		return handler(ctx, request)
	}
	if err := s.limits.Request(name); err != nil {
		return nil, err
	}
	if m, ok := request.(proto.Message); ok && storesRequests(info.FullMethod) {
		if err := s.limits.Append(name, proto.Size(m)); err != nil {
			return nil, err
		}
	}
	return handler(ctx, request)
}

// tenantStream refuses a stream that exceeds a limit of its tenant.
func (s *Server) tenantStream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	name := tenant(stream.Context())
	if name == "" || s.countsElsewhere(stream.Context(), info.FullMethod) {
		return handler(srv, stream)
	}
	if err := s.limits.Request(name); err != nil {
		return err
	}
	release, err := s.limits.Stream(name)
	if err != nil {
		return err
	}
	defer release()
	if storesRequests(info.FullMethod) {
		stream = &meteredStream{ServerStream: stream, limits: s.limits, tenant: name, waits: info.IsClientStream}
	}
	return handler(srv, stream)
}

// storesRequests reports whether a method stores what its requests contain.
func storesRequests(method string) bool {
	switch method {
	case parleyv1.ConversationService_AppendMessages_FullMethodName,
		parleyv1.ConversationService_Chat_FullMethodName,
		parleyv1.ConversationService_CreateConversation_FullMethodName,
		parleyv1.ConversationService_UpdateConversation_FullMethodName,
		parleyv1.ConversationService_SetActiveAgent_FullMethodName,
		parleyv1.ConversationService_ImportConversations_FullMethodName,
		parleyv1.RecordService_WriteRecords_FullMethodName:
		return true
	}
	return false
}

// meteredStream counts the bytes that it receives towards the tenant's rate of appended bytes.
type meteredStream struct {
	grpc.ServerStream
	limits *limit.Tenants
	tenant string
	// waits is set if the stream has many requests. It then receives them at the tenant's rate: a refusal
	// would end it after a part of them.
	waits bool
}

// RecvMsg receives a message.
func (s *meteredStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	message, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	if !s.waits {
		return s.limits.Append(s.tenant, proto.Size(message))
	}
	wait, err := s.limits.AppendLater(s.tenant, proto.Size(message))
	if err != nil || wait <= 0 {
		return err
	}
	select {
	case <-time.After(wait):
		return nil
	case <-s.Context().Done():
		return context.Cause(s.Context())
	}
}
