package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/rules"
)

// maxReasonBytes is the maximum length of the text of a status in an error.
const maxReasonBytes = 1 << 10

// responseState records which parts of a response the agent itself has sent. The same status may
// come from the agent or from gRPC after a connection error; only these parts distinguish the two.
type responseState struct {
	headers, trailers atomic.Bool
}

// responseStateKey is the key of the responseState in the context of a call.
type responseStateKey struct{}

// record returns a context for one call, and where the parts of its response are recorded.
func record(ctx context.Context) (context.Context, *responseState) {
	h := new(responseState)
	return context.WithValue(ctx, responseStateKey{}, h), h
}

// responseRecorder records the responses of calls with a responseState.
type responseRecorder struct{}

var _ stats.Handler = responseRecorder{}

// HandleRPC records the headers and trailers from the agent.
func (responseRecorder) HandleRPC(ctx context.Context, event stats.RPCStats) {
	h, ok := ctx.Value(responseStateKey{}).(*responseState)
	if !ok {
		return
	}
	switch event.(type) {
	case *stats.InHeader:
		h.headers.Store(true)
	case *stats.InTrailer:
		h.trailers.Store(true)
	}
}

// TagRPC does nothing.
func (responseRecorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn does nothing.
func (responseRecorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

// HandleConn does nothing.
func (responseRecorder) HandleConn(context.Context, stats.ConnStats) {}

// unopened returns the error for a request that could not be sent.
func (a *Agent) unopened(err error) *agent.Error {
	s := status.Convert(err)
	if s.Code() == codes.Unavailable {
		return a.unavailable(a.reason(s))
	}
	return &agent.Error{Message: "the request could not be sent to the agent", Detail: a.detail(a.reason(s))}
}

// unavailable returns the error for an agent without a usable connection.
func (a *Agent) unavailable(reason string) *agent.Error {
	return &agent.Error{Message: "the agent is not available", Detail: a.detail(reason), Retryable: true}
}

// detail returns the text for the log: the agent's address and the reason. Texts of gRPC may
// contain addresses and paths of sockets.
func (a *Agent) detail(what string) string { return a.address + ": " + what }

// failure returns the error for a stream that ended with err. started means that a piece was
// received.
func (a *Agent) failure(err error, received *responseState, started bool) *agent.Error {
	s := status.Convert(err)
	if s.Code() == codes.Unimplemented && !started && (!received.trailers.Load() || isMissingMethod(s.Message())) {
		return &agent.Error{
			Message: "the agent does not implement " + parleyv1.AgentService_ServiceDesc.ServiceName,
			Detail:  a.detail(a.reason(s)),
		}
	}
	// The trailers may have arrived although a message before them could not be decoded. gRPC reports that with
	// this prefix.
	undecodable := received.headers.Load() && strings.HasPrefix(s.Message(), "grpc: ")
	if received.trailers.Load() && !undecodable {
		return &agent.Error{Message: a.statusMessage(s), Retryable: isTemporary(s.Code())}
	}
	failure := &agent.Error{Detail: a.detail(a.reason(s))}
	switch {
	case undecodable && s.Code() == codes.ResourceExhausted:
		failure.Message = fmt.Sprintf("the agent sent a piece of more than %d bytes", a.maxPieceBytes)
	case s.Code() != codes.Unavailable && s.Code() != codes.Canceled:
		failure.Message = "the agent violated the protocol"
	case started:
		failure.Message, failure.Retryable = "the connection to the agent was lost during its answer", true
	default:
		failure.Message, failure.Retryable = "the connection to the agent was lost before its answer", true
	}
	return failure
}

// isMissingMethod reports whether a message says that the server itself does not have the method.
// It contains the texts of gRPC for Go, Python, Java and Node, and of generated code for Go and
// Python. An empty text is that of servers in Rust. An agent may end a call with the same status
// for another reason.
func isMissingMethod(message string) bool {
	if message == "" {
		return true
	}
	return slices.ContainsFunc([]string{
		"unknown service ", "unknown method ", "method Respond not implemented",
		"Method not found", "Method not implemented!", "The server does not implement the method ",
	}, func(prefix string) bool { return strings.HasPrefix(message, prefix) })
}

// statusMessage describes the failure that the agent reported.
func (a *Agent) statusMessage(s *status.Status) string {
	if reason := a.reason(s); reason != "" {
		return "the agent reported: " + reason
	}
	return fmt.Sprintf("the agent failed with status %v and without a message", s.Code())
}

// isTemporary reports whether a repeated call may succeed after this code.
func isTemporary(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// reason returns the message of a status for people: valid UTF-8 without control characters except
// tabs and line feeds, without the values of headers, and at most maxReasonBytes long.
func (a *Agent) reason(s *status.Status) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s.Message(), "\uFFFD"))
	return rules.Clip(strings.TrimSpace(agent.Redact(text, a.secrets...)), maxReasonBytes)
}
