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
)

// maxReasonBytes bounds what an error shows of a status.
const maxReasonBytes = 1 << 10

// hearing is what a call has heard from the agent itself. The same status may be the agent's
// own word or what gRPC makes of a broken connection, and only this tells them apart.
type hearing struct {
	headers, trailers atomic.Bool
}

// hearingKey is where a call's context has its hearing.
type hearingKey struct{}

// listen returns a context for one call, and where it notes what is heard.
func listen(ctx context.Context) (context.Context, *hearing) {
	h := new(hearing)
	return context.WithValue(ctx, hearingKey{}, h), h
}

// listener fills the hearing of each call that has one.
type listener struct{}

var _ stats.Handler = listener{}

// HandleRPC notes what comes from the agent.
func (listener) HandleRPC(ctx context.Context, event stats.RPCStats) {
	h, ok := ctx.Value(hearingKey{}).(*hearing)
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
func (listener) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn does nothing.
func (listener) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (listener) HandleConn(context.Context, stats.ConnStats) {}

// unopened is why the request could not be sent.
func (a *Agent) unopened(err error) *agent.Error {
	s := status.Convert(err)
	if s.Code() == codes.Unavailable {
		return a.unavailable(a.reason(s))
	}
	return &agent.Error{Message: "the request could not be sent to the agent", Detail: a.detail(a.reason(s))}
}

// unavailable is that there is nobody to send a request to.
func (a *Agent) unavailable(why string) *agent.Error {
	return &agent.Error{Message: "the agent is not available", Detail: a.detail(why), Retryable: true}
}

// detail returns the text for the log: the agent's address and the reason. The messages of gRPC may
// contain addresses and paths of sockets.
func (a *Agent) detail(what string) string { return a.address + ": " + what }

// failure is why the stream of an answer ended with err; begun says that a piece of it has
// come.
func (a *Agent) failure(err error, heard *hearing, begun bool) *agent.Error {
	s := status.Convert(err)
	if s.Code() == codes.Unimplemented && !begun && (!heard.trailers.Load() || saysNoMethod(s.Message())) {
		return &agent.Error{
			Message: "the agent does not implement " + parleyv1.AgentService_ServiceDesc.ServiceName, Detail: a.detail(a.reason(s)),
		}
	}
	// The trailers may have come while a message ahead of them could not be read, which gRPC
	// tells in this way.
	unreadable := heard.headers.Load() && strings.HasPrefix(s.Message(), "grpc: ")
	if heard.trailers.Load() && !unreadable {
		return &agent.Error{Message: a.said(s), Retryable: isPassing(s.Code())}
	}
	failure := &agent.Error{Detail: a.detail(a.reason(s))}
	switch {
	case unreadable && s.Code() == codes.ResourceExhausted:
		failure.Message = fmt.Sprintf("the agent sent a piece of more than %d bytes", a.maxPieceBytes)
	case s.Code() != codes.Unavailable && s.Code() != codes.Canceled:
		failure.Message = "the agent does not keep to the protocol"
	case begun:
		failure.Message, failure.Retryable = "the agent was lost in the middle of its answer", true
	default:
		failure.Message, failure.Retryable = "the agent was lost before it answered", true
	}
	return failure
}

// saysNoMethod reports whether a server says on its own that it does not have the method: gRPC
// for Go, Python, Java and Node, the code that is generated for Go and Python, and those that
// say nothing, as for Rust. Agents may end a call with the same status for a reason of theirs.
func saysNoMethod(message string) bool {
	if message == "" {
		return true
	}
	return slices.ContainsFunc([]string{
		"unknown service ", "unknown method ", "method Respond not implemented",
		"Method not found", "Method not implemented!", "The server does not implement the method ",
	}, func(words string) bool { return strings.HasPrefix(message, words) })
}

// said is what the agent tells of its failure.
func (a *Agent) said(s *status.Status) string {
	if reason := a.reason(s); reason != "" {
		return "the agent said: " + reason
	}
	return fmt.Sprintf("the agent failed with status %v and did not say why", s.Code())
}

// isPassing reports whether an agent that ends a call with this code may well do better at the
// next.
func isPassing(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// reason is the status's message as text for people: in valid UTF-8 without control
// characters other than tabs and line feeds, without the headers' values, and of
// maxReasonBytes at most.
func (a *Agent) reason(s *status.Status) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s.Message(), "\uFFFD"))
	text = strings.TrimSpace(agent.Redact(text, a.secrets...))
	if len(text) <= maxReasonBytes {
		return text
	}
	const more = "…"
	return agent.Truncate(text, maxReasonBytes-len(more)) + more
}
