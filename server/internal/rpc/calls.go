package rpc

import (
	"context"
	"errors"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/peer"
)

// source is where a call comes from.
type source bool

const (
	fromNetwork source = false
	fromProcess source = true // another transport of this process, which passes on what its own client sent
)

// transport returns the name of the transport, as in log entries of calls.
func (f source) transport() string {
	if f == fromProcess {
		return "http"
	}
	return "grpc"
}

// credentials returns the credentials of a call.
func (s *Server) credentials(ctx context.Context, from source) auth.Credentials {
	if from == fromProcess || s.isPassedOn(ctx) {
		return auth.FromProcess(ctx)
	}
	return auth.FromNetwork(ctx)
}

// isPassedOn reports whether another server on the same store passes on a call of one of its callers.
func (s *Server) isPassedOn(ctx context.Context) bool { return peer.IsFromServer(ctx, s.self) }

// authorize returns the caller of a method. The log contains why a credential was not accepted; the caller must not
// learn it.
func (s *Server) authorize(
	ctx context.Context, method string, from source, c auth.Credentials,
) (auth.Principal, error) {
	p, err := s.auth.Authorize(ctx, method, c)
	switch {
	case err == nil:
		calllog.Of(ctx).SignedIn(p)
	case errors.Is(err, auth.ErrUnauthenticated):
		s.calls.SignInFailed(ctx, method, from == fromProcess, c)
		s.monitor.SignInFailed(from.transport())
		s.log.DebugContext(ctx, "credential not accepted", "method", method, "error", err)
	default:
		calllog.Of(ctx).SignedIn(p)
		s.calls.PermissionDenied(ctx, method, from == fromProcess, p, err)
	}
	return p, err
}

// Authorize returns an error, which is a status, if a caller in this process with this metadata may not call a
// method. A transport calls it before it spends memory on a request. The call itself is authorized again. If the
// transport then refuses the request without a call, it must pass the reason to refused, which logs and reports it.
func (s *Server) Authorize(ctx context.Context, method string, sent metadata.MD) (refused func(error), _ error) {
	ctx, call := s.calls.Begin(metadata.NewIncomingContext(ctx, sent), method, true)
	if _, err := s.authorize(ctx, method, fromProcess, auth.FromProcess(ctx)); err != nil {
		err = s.toStatus(ctx, method, err)
		s.calls.End(ctx, call, err)
		return nil, err
	}
	return func(err error) {
		if status.Code(err) == codes.ResourceExhausted {
			_, reason := codeOf(err)
			s.monitor.Refused(call.Tenant(), reason)
		}
		s.calls.End(ctx, call, err)
	}, nil
}

// SignIn returns the caller of a request that is not a call itself, but may cause calls of a method, or is for the
// metrics. sent is the metadata that its transport passes on.
func (s *Server) SignIn(ctx context.Context, method string, sent metadata.MD) (auth.Principal, error) {
	ctx = metadata.NewIncomingContext(ctx, sent)
	return s.authorize(ctx, method, fromProcess, auth.FromProcess(ctx))
}

// acceptUnary returns a handler that records the request and the reply for the log.
func acceptUnary(handler grpc.UnaryHandler) grpc.UnaryHandler {
	return func(ctx context.Context, request any) (any, error) {
		call := calllog.Of(ctx)
		call.Accepted(request)
		reply, err := handler(ctx, request)
		if err == nil {
			call.Replied(reply)
		}
		return reply, err
	}
}

// acceptStream records for the log that a stream was accepted. [validatedStream] records the request.
func acceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.IsClientStream {
		calllog.Of(stream.Context()).Accepted(nil)
	}
	return handler(srv, stream)
}

// codeOf returns the name of the status code of an error, as in google.rpc.Code, and the reason that the status has.
func codeOf(err error) (code, reason string) {
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			reason = info.GetReason()
		}
	}
	return rpccode.Code(st.Code()).String(), reason
}

// connectionEnded reports whether a status is the one with which gRPC answers when the connection of a stream has
// ended. The statuses of toStatus have details.
func connectionEnded(st *status.Status) bool {
	return st.Code() == codes.Unavailable && len(st.Proto().GetDetails()) == 0
}

// SetCalls changes which calls have an entry in the log.
func (s *Server) SetCalls(c calllog.Settings) { s.calls.Set(c) }

// Close writes how many audit entries were left out. It must be called after all calls have ended.
func (s *Server) Close() { s.calls.Close() }
