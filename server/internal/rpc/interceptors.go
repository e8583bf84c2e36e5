package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

const (
	// maxUnaryTime is the maximum deadline of a unary call. Clients may set any deadline.
	maxUnaryTime = 10 * time.Minute
	// maxSendTime is the minimum time that a client has to read one message of a stream. It has one
	// second more for each minSendBytes of the message. The checks add up to 2*checkInterval.
	maxSendTime  = 30 * time.Second
	minSendBytes = 8 << 10
	// maxReceiveTime is the minimum time that a client has to send the next request of a stream. An
	// import may read from a slow pipe. The checks add up to checkInterval.
	maxReceiveTime = 5 * time.Minute
	// checkInterval is the time between two checks of a stream. The first check of a wait only records
	// it, and the last check may happen just before the time is over. Together they add up to one
	// interval.
	checkInterval = 5 * time.Second
)

// Errors of the interceptors.
var (
	errSlowReader = errors.New("client does not read its stream")
	errSlowSender = errors.New("client sends nothing on its stream")
)

// ServerOptions returns the options that a grpc.Server needs to serve s: the codec
// [rules.RequestCodec], which drops the unknown fields of requests, and interceptors around every handler.
//
// The order of the interceptors is, from the outermost: log, status, recovery, authentication, limits,
// validation. The status interceptor is near the outside, because it is the only one that makes
// statuses. The limits of a stream come before recovery, because they run the inner interceptors in
// another goroutine.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return s.serverOptions(auth.FromNetwork, s.limitStream)
}

// LoopbackOptions returns the ServerOptions of a grpc.Server whose clients are in this process and
// forward streams to clients of their own, such as the gateway. These options do not limit the time
// of a send. While a client forwards a large message to a slow client of its own, the next message
// waits in this server, which cannot know how long that takes. So the forwarding client must end a
// stream whose own client does not read.
func (s *Server) LoopbackOptions() []grpc.ServerOption {
	return s.serverOptions(auth.FromProcess, s.limitReceives)
}

func (s *Server) serverOptions(from credentialsOf, limit grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(s.requests.codec),
		grpc.ChainUnaryInterceptor(s.unaryInterceptors(from)...),
		grpc.ChainStreamInterceptor(
			s.logStream, s.statusStream, limit,
			recovery.StreamServerInterceptor(recovery.WithRecoveryHandler(panicError)),
			s.authStream(from), s.validateStream,
		),
	}
}

func (s *Server) unaryInterceptors(from credentialsOf) []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		s.logUnary, s.statusUnary, recovery.UnaryServerInterceptor(recovery.WithRecoveryHandler(panicError)),
		s.authUnary(from), s.limitUnary, s.validateUnary,
	}
}

// panicError returns an error for a recovered panic, with the stack for the log.
func panicError(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

func (s *Server) logUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	start := s.now()
	reply, err := handler(ctx, request)
	s.logCall(ctx, info.FullMethod, start, err)
	return reply, err
}

func (s *Server) logStream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	start := s.now()
	err := handler(srv, stream)
	s.logCall(stream.Context(), info.FullMethod, start, err)
	return err
}

func (s *Server) logCall(ctx context.Context, method string, start time.Time, err error) {
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.log.DebugContext(
			ctx,
			"call",
			"method",
			method,
			"code",
			status.Code(err).String(),
			"duration",
			s.now().Sub(start).String(),
		)
	}
}

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

// principal returns the caller.
func principal(ctx context.Context) auth.Principal {
	p, _ := ctx.Value(principalKey{}).(auth.Principal)
	return p
}

// tenant returns the tenant of the caller.
func tenant(ctx context.Context) string { return principal(ctx).Tenant }

// credentialsOf returns the credentials of a call.
type credentialsOf func(ctx context.Context) auth.Credentials

// authorize returns the caller of a method. The log contains why a credential was not accepted; the caller must not
// learn it.
func (s *Server) authorize(ctx context.Context, method string, c auth.Credentials) (auth.Principal, error) {
	p, err := s.auth.Authorize(ctx, method, c)
	if errors.Is(err, auth.ErrUnauthenticated) {
		s.log.DebugContext(ctx, "credential not accepted", "method", method, "error", err)
	}
	return p, err
}

// authUnary adds the caller to the context of a call. It rejects callers that may not call the method.
func (s *Server) authUnary(from credentialsOf) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		p, err := s.authorize(ctx, info.FullMethod, from(ctx))
		if err != nil {
			return nil, err
		}
		return handler(context.WithValue(ctx, principalKey{}, p), request)
	}
}

// authStream does the same for a stream. It ends the stream when the caller's credential is no longer valid.
func (s *Server) authStream(from credentialsOf) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, credentials := stream.Context(), from(stream.Context())
		p, err := s.authorize(ctx, info.FullMethod, credentials)
		if err != nil {
			return err
		}
		if !p.Expires.IsZero() {
			expires := metadata.Pairs(auth.ExpiresKey, p.Expires.UTC().Format(time.RFC3339))
			if err := stream.SetHeader(expires); err != nil {
				return err
			}
		}
		ctx, release := s.auth.Follow(context.WithValue(ctx, principalKey{}, p), info.FullMethod, credentials, p)
		defer release()
		if limited, ok := stream.(*limitedStream); ok {
			// The handler may wait in RecvMsg or SendMsg, which do not notice that ctx has ended.
			stop := context.AfterFunc(ctx, func() {
				if cause := context.Cause(ctx); errors.Is(cause, auth.ErrUnauthenticated) {
					limited.abort(cause)
				}
			})
			defer stop()
		}
		err = handler(srv, &callerStream{ServerStream: stream, ctx: ctx})
		if cause := context.Cause(ctx); errors.Is(cause, auth.ErrUnauthenticated) {
			return cause // It is the reason why the handler returned.
		}
		return err
	}
}

// callerStream is a stream whose context contains the caller's principal.
type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context with the caller's principal.
func (s *callerStream) Context() context.Context { return s.ctx }

func (s *Server) limitUnary(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, maxUnaryTime)
	defer cancel()
	return handler(ctx, request)
}

// limitStream ends a stream whose client does not read, or does not send the next request. A handler
// that blocks in gRPC's SendMsg or RecvMsg cannot be interrupted: it blocks until the client acts or
// the stream ends, and the stream ends when the interceptor returns. So limitStream returns while the
// handler is still running. The handler returns soon after that.
func (s *Server) limitStream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if info.FullMethod == parleyv1.ConversationService_WatchConversations_FullMethodName {
		return handler(srv, stream) // A slow watcher blocks nothing: the hub drops changes and sends a GAP.
	}
	limited := newLimitedStream(stream)
	return limited.run(srv, handler, func() error {
		// Read the limit before the duration: if another send starts in between, the duration is 0.
		allowed := limited.sendTime()
		if limited.sends.duration() >= allowed {
			return errSlowReader
		}
		return limited.checkReceive()
	})
}

// limitReceives ends a stream whose client does not send the next request.
func (s *Server) limitReceives(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if !info.IsClientStream {
		return handler(srv, stream)
	}
	limited := newLimitedStream(stream)
	return limited.run(srv, handler, limited.checkReceive)
}

// limitedStream is a stream that measures how long it waits for its client.
type limitedStream struct {
	grpc.ServerStream
	sends, receives waitMeter
	sent            atomic.Int64 // bytes of the previous message
	aborted         chan error   // receives why the stream ends before its handler
}

func newLimitedStream(stream grpc.ServerStream) *limitedStream {
	return &limitedStream{ServerStream: stream, aborted: make(chan error, 1)}
}

// abort ends the stream with an error while its handler is running. It may be called once.
func (s *limitedStream) abort(err error) { s.aborted <- err }

// run runs the handler in another goroutine and calls check every checkInterval. It returns when the
// handler returns, check fails, or the stream is aborted.
func (s *limitedStream) run(srv any, handler grpc.StreamHandler, check func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- handler(srv, s) }()
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case err := <-s.aborted:
			return err
		case <-ticker.C:
			if err := check(); err != nil {
				return err
			}
		}
	}
}

// checkReceive returns errSlowSender if the current receive has lasted too long.
func (s *limitedStream) checkReceive() error {
	if s.receives.duration() >= maxReceiveTime {
		return errSlowSender
	}
	return nil
}

// sendTime returns the time that the current send may take. A client that reads steadily over a slow
// connection needs more time for a large message.
func (s *limitedStream) sendTime() time.Duration {
	return maxSendTime + time.Duration(s.sent.Load()/minSendBytes)*time.Second
}

// SendMsg sends a message. gRPC accepts a message as soon as less than 64 KiB of the previous messages
// wait for the client. So a send waits for the previous message, not for its own.
func (s *limitedStream) SendMsg(m any) error {
	s.sends.transitions.Add(1)
	defer s.sends.transitions.Add(1)
	err := s.ServerStream.SendMsg(m)
	if message, ok := m.(proto.Message); ok { // gRPC has just computed and cached the size.
		s.sent.Store(int64(proto.MarshalOptions{UseCachedSize: true}.Size(message)))
	}
	return err
}

// RecvMsg receives a message.
func (s *limitedStream) RecvMsg(m any) error {
	s.receives.transitions.Add(1)
	defer s.receives.transitions.Add(1)
	return s.ServerStream.RecvMsg(m)
}

// waitMeter measures the duration of sends or of receives, of which there is one at a time. The handler
// increments transitions at the start and at the end of each, so that it is odd during a wait and
// different for each wait. This costs almost nothing, unlike a timer for each message.
//
// The handler only uses transitions. The goroutine that calls duration owns the other fields.
type waitMeter struct {
	transitions atomic.Uint64
	last        uint64        // transitions at the last call of duration
	waited      time.Duration // minimum time that transitions has been last and odd
}

// duration returns the minimum time that the current wait has lasted, or 0 if there is none. It must be
// called every checkInterval.
func (w *waitMeter) duration() time.Duration {
	now := w.transitions.Load()
	if now != w.last || now%2 == 0 {
		w.last, w.waited = now, 0
	} else {
		w.waited += checkInterval
	}
	return w.waited
}
