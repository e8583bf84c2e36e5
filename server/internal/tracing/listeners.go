package tracing

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// CodeOf returns the name of the status code of an error, and its reason or "". The name of the code of nil is OK.
type CodeOf func(error) (code, reason string)

// traceParent is the name of the header with the trace context; see W3C Trace Context.
const traceParent = "traceparent"

// beginCall begins the span of a call that arrives at a listener, below the span that sent names. The caller must set
// attributes only if it is recorded: most calls are not, and they should cost little.
func (t *Tracer) beginCall(
	ctx context.Context, sent propagation.TextMapCarrier, name string, kind trace.SpanStartOption,
) (_ context.Context, _ *Span, recorded bool) {
	parent := ctx
	if sent.Get(traceParent) != "" {
		parent = propagation.TraceContext{}.Extract(ctx, sent)
	}
	_, span := t.tracer.Start(parent, name, kind)
	s := &Span{span: span, tracer: t.tracer}
	return context.WithValue(ctx, spanKey{}, s), s, span.IsRecording()
}

// HTTP returns a handler that begins a span for each request to next. If t is nil, it returns next.
func (t *Tracer) HTTP(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		method := knownMethod(r.Method)
		name := method
		if method == otherMethod {
			name = "HTTP"
		}
		ctx, span, recorded := t.beginCall(r.Context(), propagation.HeaderCarrier(r.Header), name, t.serverKind)
		if recorded {
			span.span.SetAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.URLPath(spanPath(r.URL.Path)),
				semconv.URLScheme(scheme))
		}
		recorder := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
		defer func() {
			fault := ""
			if recorder.code >= http.StatusInternalServerError {
				fault = strconv.Itoa(recorder.code)
			}
			span.span.SetAttributes(semconv.HTTPResponseStatusCode(recorder.code))
			span.End(fault)
		}()
		next.ServeHTTP(recorder, r.WithContext(ctx))
	})
}

// maxPathBytes is the maximum length of a path in a span. Spans wait for the collector in memory.
const maxPathBytes = 256

// spanPath returns a path as a span has it: not too long, and valid UTF-8. A single span with any other text would make
// the exporter lose the whole batch.
func spanPath(path string) string {
	return strings.ToValidUTF8(path[:min(len(path), maxPathBytes)], "\uFFFD")
}

// otherMethod stands for a method that the conventions do not know.
const otherMethod = "_OTHER"

// knownMethod returns the method of a request, or otherMethod.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return method
	}
	return otherMethod
}

// statusRecorder is a response writer that records the status.
type statusRecorder struct {
	http.ResponseWriter
	code int
}

// WriteHeader writes the header.
func (s *statusRecorder) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Flush sends buffered output.
func (s *statusRecorder) Flush() {
	_ = http.NewResponseController(s.ResponseWriter).Flush() // A broken connection also fails the next write.
}

// Unwrap returns the wrapped writer, for [http.ResponseController].
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// callCarrier is the carrier of the trace context in the metadata of a call. It copies no other metadata.
type callCarrier struct{ ctx context.Context } //nolint:containedctx // of the call

// Get returns the first value of a key.
func (c callCarrier) Get(key string) string {
	if values := metadata.ValueFromIncomingContext(c.ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set does nothing.
func (callCarrier) Set(string, string) {}

// Keys returns nothing.
func (callCarrier) Keys() []string { return nil }

// beginRPC begins the span of a call of gRPC. inProcess means that another transport of this process makes the call.
func (t *Tracer) beginRPC(ctx context.Context, method string, inProcess bool) (context.Context, *Span) {
	kind := t.serverKind
	if inProcess {
		kind = t.internalKind
	}
	name := method[1:]
	ctx, span, recorded := t.beginCall(ctx, callCarrier{ctx}, name, kind)
	if recorded {
		span.span.SetAttributes(semconv.RPCSystemNameGRPC, semconv.RPCMethod(name))
	}
	return ctx, span
}

// endRPC ends the span of a call of gRPC.
func endRPC(span *Span, err error, codeOf CodeOf) {
	if !span.span.IsRecording() {
		return
	}
	code := "OK"
	if err != nil {
		code, _ = codeOf(err)
	}
	span.span.SetAttributes(semconv.RPCResponseStatusCode(code))
	switch code {
	case "UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS":
		span.End(code)
	default: // An error of the client.
		span.End("")
	}
}

// isTraced reports whether calls of a method have spans. Those of health checks and of reflection have none: on
// a server with few calls they would be most of the spans.
func isTraced(method string) bool { return strings.HasPrefix(method, "/parley.") }

// Unary returns the interceptor that begins a span for each unary call of Parley. t must not be nil.
func (t *Tracer) Unary(inProcess bool, codeOf CodeOf) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if !isTraced(info.FullMethod) {
			return handler(ctx, request)
		}
		ctx, span := t.beginRPC(ctx, info.FullMethod, inProcess)
		reply, err := handler(ctx, request)
		endRPC(span, err, codeOf)
		return reply, err
	}
}

// Stream returns the interceptor that begins a span for each stream of Parley. t must not be nil.
func (t *Tracer) Stream(inProcess bool, codeOf CodeOf) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !isTraced(info.FullMethod) {
			return handler(srv, stream)
		}
		ctx, span := t.beginRPC(stream.Context(), info.FullMethod, inProcess)
		err := handler(srv, &tracedStream{stream, ctx})
		endRPC(span, err, codeOf)
		return err
	}
}

// tracedStream is a stream whose context has a span.
type tracedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context with the span.
func (s *tracedStream) Context() context.Context { return s.ctx }
