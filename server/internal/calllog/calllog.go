// Package calllog writes one log entry for a call, and one for an event that an operator may have to prove later:
// a failed sign-in, a refused role, a call that needs the role admin, a delete, an export or an import.
//
// Its interceptors begin a [Call] for each call and end it. The code between them adds what it learns: the caller,
// the ids in the request, the reason of an error. An entry contains no content of a message and no credential.
// Start at [Log].
package calllog

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Calls says which calls have a log entry.
type Calls string

// The values of Calls. A call that Errors, Slow and All do not include has an entry at the level debug. With Off,
// no call has one.
const (
	Off Calls = "off"
	// Errors includes the calls that failed, except those that their caller cancelled, those that a stop of the
	// server ended, and those without a valid credential, which have an audit entry.
	Errors Calls = "errors"
	// Slow includes the same calls as Errors, and those that took longer than Settings.SlowAfter.
	Slow Calls = "slow"
	// All includes all calls.
	All Calls = "all"
)

// Settings are the settings of a Log that may change while it is in use.
type Settings struct {
	// Calls says which calls have an entry. If empty, it is Errors.
	Calls Calls
	// SlowAfter is the duration above which a call is slow. A stream counts until its first reply. Calls that wait
	// for others, for example WatchConversations, are never slow.
	SlowAfter time.Duration
}

// Options configure a Log.
type Options struct {
	Settings
	// Log receives the entries. It is required.
	Log *slog.Logger
	// Now is the clock. If nil, it is time.Now.
	Now func() time.Time
	// CodeOf returns the name of the status code of an error, and the reason that the status has, or "". The name of
	// the code of nil is OK. It is required.
	CodeOf func(error) (code, reason string)
	// Traced reports whether a call belongs to a trace whose id Log adds to entries. If it is nil or returns false, an
	// entry has the id that the caller sent.
	Traced func(ctx context.Context) bool
}

// Log writes the entries of calls and audit entries. Create it with New, and close it. Its methods may be called
// from many goroutines.
type Log struct {
	log      *slog.Logger
	now      func() time.Time
	codeOf   func(error) (code, reason string)
	traced   func(ctx context.Context) bool
	settings atomic.Pointer[Settings]
	events   map[string]Event // of audited methods, by full name
	signIns  *bound           // of failed sign-ins
	refusals *bound           // of refused callers
}

// New returns a log.
func New(o Options) *Log {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Traced == nil {
		o.Traced = func(context.Context) bool { return false }
	}
	l := &Log{log: o.Log, now: o.Now, codeOf: o.CodeOf, traced: o.Traced, events: auditedMethods()}
	l.signIns = &bound{report: l.reportLeftOut(SignInFailed)}
	l.refusals = &bound{report: l.reportLeftOut(PermissionDenied)}
	l.Set(o.Settings)
	return l
}

// Set changes the settings. Calls that end later have an entry by the new ones.
func (l *Log) Set(s Settings) { l.settings.Store(&s) }

// Close writes how many audit entries were left out since the last report.
func (l *Log) Close() {
	l.signIns.close()
	l.refusals.close()
}

// Unary returns the interceptor that logs unary calls. It must be the outermost one. inProcess means that another
// transport of this process makes the calls; see [Forwarded].
func (l *Log) Unary(inProcess bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, call := l.Begin(ctx, info.FullMethod, inProcess)
		reply, err := handler(ctx, request)
		l.End(ctx, call, err)
		return reply, err
	}
}

// Stream returns the interceptor that logs streams. It must be the outermost one.
func (l *Log) Stream(inProcess bool) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, call := l.Begin(stream.Context(), info.FullMethod, inProcess)
		err := handler(srv, &loggedStream{ServerStream: stream, ctx: ctx, call: call, now: l.now})
		l.End(ctx, call, err)
		return err
	}
}

// loggedStream is a stream that records when its first reply was sent.
type loggedStream struct {
	grpc.ServerStream
	ctx  context.Context
	call *Call
	now  func() time.Time
}

// Context returns the context with the call.
func (s *loggedStream) Context() context.Context { return s.ctx }

// SendMsg sends a message.
func (s *loggedStream) SendMsg(m any) error {
	if !s.call.replied.Load() {
		s.call.setReplied(s.now())
	}
	return s.ServerStream.SendMsg(m)
}

// Begin returns a context with a new call, which the caller must end.
func (l *Log) Begin(ctx context.Context, method string, inProcess bool) (context.Context, *Call) {
	call := &Call{method: method, inProcess: inProcess, start: l.now()}
	return context.WithValue(ctx, callKey{}, call), call
}

// End writes the entry of a call, and its audit entry, if it has them. err is the status of the call.
func (l *Log) End(ctx context.Context, c *Call, err error) {
	settings := l.settings.Load()
	event, audited := l.auditEvent(c)
	if settings.Calls == Off && !audited {
		return
	}
	end := l.now()
	code, reason := "OK", ""
	if err != nil {
		code, reason = l.codeOf(err)
	}
	if audited {
		l.auditCall(ctx, c, event, code, reason)
	}
	level, ok := c.level(settings, code, reason, end)
	if !ok || !l.log.Enabled(ctx, level) {
		return
	}
	attributes := make([]slog.Attr, 0, maxAttributes)
	attributes = append(attributes, slog.String("method", c.method), slog.String("code", code))
	attributes = appendText(attributes, "reason", reason)
	attributes = append(attributes, slog.String("duration", end.Sub(c.start).String()))
	if first := c.firstReply(); !first.IsZero() {
		attributes = append(attributes, slog.String("first_reply", first.Sub(c.start).String()))
	}
	attributes = l.appendAbout(ctx, attributes, c)
	l.log.LogAttrs(ctx, level, "call", attributes...)
}

// maxAttributes is the number of attributes of an entry of a call, at most.
const maxAttributes = 14

// level returns the level of the entry of a call, or false if the call has none.
func (c *Call) level(s *Settings, code, reason string, end time.Time) (slog.Level, bool) {
	switch code {
	case codeOK:
	case "INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE":
		if reason != "SHUTTING_DOWN" {
			return slog.LevelWarn, s.Calls != Off
		}
	case "CANCELLED":
	case "UNAUTHENTICATED":
		if c.isSignedIn() { // The credential of a stream ended.
			return slog.LevelInfo, s.Calls != Off
		}
	default:
		return slog.LevelInfo, s.Calls != Off
	}
	switch s.Calls {
	case All:
		return slog.LevelInfo, true
	case Slow:
		if c.slowTime(end) > s.SlowAfter {
			return slog.LevelInfo, true
		}
	case Errors, Off:
	}
	return slog.LevelDebug, s.Calls != Off
}

const codeOK = "OK"

// appendAbout appends who made a call and what it is about. Texts that are empty are left out.
func (l *Log) appendAbout(ctx context.Context, to []slog.Attr, c *Call) []slog.Attr {
	from := origin(ctx, c.inProcess)
	c.mu.Lock()
	defer c.mu.Unlock()
	to = appendText(to, "tenant", c.principal.Tenant)
	to = appendText(to, "caller", c.principal.Name)
	to = appendText(to, "conversation_id", c.conversation)
	to = appendText(to, "transport", from.transport)
	to = appendText(to, "peer", from.peer)
	to = appendText(to, "request_id", c.request)
	to = appendText(to, "call_id", from.callID)
	return l.appendTraceID(ctx, to)
}

// appendTraceID appends the id of the trace that the caller sent, unless the log adds the id of the trace.
func (l *Log) appendTraceID(ctx context.Context, to []slog.Attr) []slog.Attr {
	if l.traced(ctx) {
		return to
	}
	return appendText(to, "trace_id", sentTraceID(ctx))
}

func appendText(to []slog.Attr, key, text string) []slog.Attr {
	if text == "" {
		return to
	}
	return append(to, slog.String(key, text))
}
