package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rules"
)

const (
	// maxUnaryTime bounds the deadline of a unary call, which clients set as they like.
	maxUnaryTime = 10 * time.Minute
	// maxSendTime is how long a stream waits for its client to read one message, at least: a
	// second more for each minSendBytes of it, and up to 2*limitLook more.
	maxSendTime  = 30 * time.Second
	minSendBytes = 8 << 10
	// maxReceiveTime is how long a stream waits for the next request of its client, at least;
	// it is up to limitLook more. An import may come out of a slow pipe.
	maxReceiveTime = 5 * time.Minute
	// limitLook is how often a stream is checked. The first check of a wait only notes it, and the
	// last one may come just before its time is over: both add up to limitLook.
	limitLook = 5 * time.Second
	// adminRole is what some calls need where callers sign in, see needsAdmin.
	adminRole = "admin"
)

// What the interceptors may answer of their own.
var (
	errUnauthenticated = errors.New("not signed in")
	errNotAllowed      = errors.New("not allowed")
	errSlowReader      = errors.New("client does not read its stream")
	errSlowSender      = errors.New("client sends nothing on its stream")
)

// ServerOptions are those that the grpc.Server must have: a codec that drops the unknown
// fields of requests, see [rules.Codec], and interceptors around every handler. Outermost
// first, these are log, status, recovery, authentication, limits, validation. Errors become
// statuses near the outside, so that no other place makes one. A stream's limits come before
// recovery: they run the rest in another goroutine.
func (s *Server) ServerOptions() []grpc.ServerOption { return s.serverOptions(s.limitStream) }

// LoopbackOptions are the ServerOptions of a grpc.Server whose clients are in this process and
// pass streams on to clients of their own, such as the gateway. A send may take any time: while a
// large message is passed on to a slow client, later ones wait here, and the server cannot know
// how long that takes. A server that passes a stream on must end it when its own client takes nothing.
func (s *Server) LoopbackOptions() []grpc.ServerOption { return s.serverOptions(s.limitReceives) }

func (s *Server) serverOptions(limit grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(rules.Codec()),
		grpc.ChainUnaryInterceptor(s.unaryInterceptors()...),
		grpc.ChainStreamInterceptor(
			s.logStream, s.statusStream, limit, recovery.StreamServerInterceptor(recovery.WithRecoveryHandler(panicked)),
			s.authStream, validateStream,
		),
	}
}

func (s *Server) unaryInterceptors() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		s.logUnary, s.statusUnary, recovery.UnaryServerInterceptor(recovery.WithRecoveryHandler(panicked)),
		s.authUnary, s.limitUnary, validateUnary,
	}
}

// panicked makes an error of what was recovered from, with the stack for the log.
func panicked(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

func (s *Server) logUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := s.now()
	reply, err := handler(ctx, request)
	s.logCall(ctx, info.FullMethod, start, err)
	return reply, err
}

func (s *Server) logStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	start := s.now()
	err := handler(srv, stream)
	s.logCall(stream.Context(), info.FullMethod, start, err)
	return err
}

func (s *Server) logCall(ctx context.Context, method string, start time.Time, err error) {
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.log.DebugContext(ctx, "call", "method", method, "code", status.Code(err).String(), "duration", s.now().Sub(start).String())
	}
}

func (s *Server) statusUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, request)
	if err != nil {
		return nil, s.toStatus(ctx, info.FullMethod, err)
	}
	return reply, nil
}

func (s *Server) statusStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := handler(srv, stream); err != nil {
		return s.toStatus(stream.Context(), info.FullMethod, err)
	}
	return nil
}

// principalKey is where the interceptor leaves the caller for the handler, which takes
// the tenant out and hands it on by name.
type principalKey struct{}

// tenant returns the tenant of the caller.
func tenant(ctx context.Context) string {
	p, _ := ctx.Value(principalKey{}).(auth.Principal)
	return p.Tenant
}

func (s *Server) authUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := s.signIn(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (s *Server) authStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := s.signIn(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &callerStream{ServerStream: stream, ctx: ctx})
}

// signIn adds the caller to the context of a call, if the caller may make it.
func (s *Server) signIn(ctx context.Context, method string) (context.Context, error) {
	p := auth.Anonymous()
	if s.authenticate != nil {
		var err error
		if p, err = s.authenticate(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnauthenticated, err)
		}
		if needsAdmin(method) && !slices.Contains(p.Roles, adminRole) {
			return nil, fmt.Errorf("%w: %s needs the role %q", errNotAllowed, method, adminRole)
		}
	}
	return context.WithValue(ctx, principalKey{}, p), nil
}

// needsAdmin reports whether a method is for administrators: those of AdminService, and what
// takes from the log of what was said.
func needsAdmin(method string) bool {
	return method == parleyv1.InteractionLogService_DeleteInteractions_FullMethodName ||
		strings.HasPrefix(method, "/"+parleyv1.AdminService_ServiceDesc.ServiceName+"/")
}

// callerStream is a stream whose context knows the caller.
type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context knows the caller.
func (s *callerStream) Context() context.Context { return s.ctx }

func (s *Server) limitUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, maxUnaryTime)
	defer cancel()
	return handler(ctx, request)
}

// limitStream gives up on a client that does not read, or that sends nothing where a request
// must come. A handler that blocks in grpc's SendMsg or RecvMsg blocks until the client does
// its part or the stream ends, and the stream only ends when the handler seems to return; it
// then does, soon after.
func (s *Server) limitStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == parleyv1.ConversationService_WatchConversations_FullMethodName {
		return handler(srv, stream) // A watcher may be slow: it holds nothing up, and gets a GAP.
	}
	limited := &limitedStream{ServerStream: stream}
	return limited.run(srv, handler, func() error {
		allowed := limited.sendTime() // Before stuck, which sees whether another send has begun since.
		if limited.sends.stuck() >= allowed {
			return errSlowReader
		}
		return limited.checkReceive()
	})
}

// limitReceives gives up on a client that sends nothing where a request must come.
func (s *Server) limitReceives(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !info.IsClientStream {
		return handler(srv, stream)
	}
	limited := &limitedStream{ServerStream: stream}
	return limited.run(srv, handler, limited.checkReceive)
}

// limitedStream is a stream that can be seen to wait for its client.
type limitedStream struct {
	grpc.ServerStream
	sends, receives waits
	sent            atomic.Int64 // bytes of the previous message
}

// run runs the handler, and returns when it does or check fails. It calls check every limitLook.
func (s *limitedStream) run(srv any, handler grpc.StreamHandler, check func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- handler(srv, s) }()
	look := time.NewTicker(limitLook)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-look.C:
			if err := check(); err != nil {
				return err
			}
		}
	}
}

// checkReceive fails when the receive under way takes too long.
func (s *limitedStream) checkReceive() error {
	if s.receives.stuck() >= maxReceiveTime {
		return errSlowSender
	}
	return nil
}

// sendTime is how long the send under way may take. A client that reads steadily, over a slow
// line, needs more time for a large message.
func (s *limitedStream) sendTime() time.Duration {
	return maxSendTime + time.Duration(s.sent.Load()/minSendBytes)*time.Second
}

// SendMsg sends a message. gRPC accepts it when less than 64 KiB of the previous messages wait for
// the client, so a send waits for the previous message, not for its own.
func (s *limitedStream) SendMsg(m any) error {
	s.sends.steps.Add(1)
	defer s.sends.steps.Add(1)
	err := s.ServerStream.SendMsg(m)
	if message, ok := m.(proto.Message); ok { // gRPC has just computed and cached its size.
		s.sent.Store(int64(proto.MarshalOptions{UseCachedSize: true}.Size(message)))
	}
	return err
}

// RecvMsg receives.
func (s *limitedStream) RecvMsg(m any) error {
	s.receives.steps.Add(1)
	defer s.receives.steps.Add(1)
	return s.ServerStream.RecvMsg(m)
}

// waits are those of one kind, one at a time: steps is odd in each, and another number each
// time. That costs nothing beside the sending of a piece; a timer for each would.
type waits struct {
	steps atomic.Uint64
	last  uint64        // steps at the last look
	since time.Duration // how long steps has been that and odd, at least
}

// stuck is how long the wait that is under way has lasted, at least, if asked every limitLook.
func (w *waits) stuck() time.Duration {
	now := w.steps.Load()
	if now != w.last || now%2 == 0 {
		w.last, w.since = now, 0
	} else {
		w.since += limitLook
	}
	return w.since
}
