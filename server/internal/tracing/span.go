package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// spanKey is the context key of the Span.
type spanKey struct{}

// Span is an operation of a call. The methods of a nil Span do nothing.
type Span struct {
	span   trace.Span
	tracer trace.Tracer
}

// of returns the span of a context, or nil.
func of(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}

// TraceID returns the id of the trace that a context belongs to, or "".
func TraceID(ctx context.Context) string {
	s := of(ctx)
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Traced reports whether a context belongs to a trace.
func Traced(ctx context.Context) bool { return of(ctx) != nil }

// Inject passes the trace context to set, as the headers traceparent and tracestate. Without a span it does nothing.
func Inject(ctx context.Context, set func(key, value string)) {
	if s := of(ctx); s != nil {
		propagation.TraceContext{}.Inject(trace.ContextWithSpan(ctx, s.span), setter(set))
	}
}

// setter is a carrier of a trace context that can only be written.
type setter func(key, value string)

// Get returns nothing.
func (setter) Get(string) string { return "" }

// Set sets a header.
func (s setter) Set(key, value string) { s(key, value) }

// Keys returns nothing.
func (setter) Keys() []string { return nil }

// begin begins a span below parent. The caller must end it.
func begin(
	ctx context.Context, parent *Span, name string, kind trace.SpanKind, attributes ...attribute.KeyValue,
) (context.Context, *Span) {
	_, span := parent.tracer.Start(trace.ContextWithSpan(ctx, parent.span), name,
		trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	s := &Span{span: span, tracer: parent.tracer}
	return context.WithValue(ctx, spanKey{}, s), s
}

// recorded returns the span of a context if the trace is recorded, and nil otherwise.
func recorded(ctx context.Context) *Span {
	if s := of(ctx); s != nil && s.span.SpanContext().IsSampled() {
		return s
	}
	return nil
}

// TurnIDKey is the attribute with the id of a turn. The conventions have none.
const TurnIDKey = attribute.Key("parley.turn.id")

// BeginTurn begins the span of a turn, below the span of the call in ctx. It returns base, the context of the turn,
// with this span. The span may end after that of the call.
func BeginTurn(ctx, base context.Context, conversationID, turnID string) (context.Context, *Span) {
	parent := recorded(ctx)
	if parent == nil {
		if s := of(ctx); s != nil {
			base = context.WithValue(base, spanKey{}, s) // Agents learn that the trace is not recorded.
		}
		return base, nil
	}
	return begin(base, parent, "turn", trace.SpanKindInternal,
		semconv.GenAIConversationID(conversationID), TurnIDKey.String(turnID))
}

// BeginAgent begins the span of an agent's answer. kind is the kind of agent.
func BeginAgent(ctx context.Context, kind, name, conversationID string) (context.Context, *Span) {
	parent := recorded(ctx)
	if parent == nil {
		return ctx, nil
	}
	attributes := []attribute.KeyValue{
		semconv.GenAIOperationNameInvokeAgent, semconv.GenAIAgentName(name), semconv.GenAIConversationID(conversationID),
	}
	spanKind := trace.SpanKindInternal
	switch kind {
	case "openai":
		attributes, spanKind = append(attributes, semconv.GenAIProviderNameOpenAI), trace.SpanKindClient
	case "anthropic":
		attributes, spanKind = append(attributes, semconv.GenAIProviderNameAnthropic), trace.SpanKindClient
	default:
		attributes = append(attributes, semconv.GenAIProviderNameKey.String("parley."+kind))
		if kind == "remote" {
			spanKind = trace.SpanKindClient
		}
	}
	return begin(ctx, parent, "invoke_agent "+name, spanKind, attributes...)
}

// BeginStore begins the span of an operation of the store.
func BeginStore(ctx context.Context, operation string) (context.Context, *Span) {
	parent := recorded(ctx)
	if parent == nil {
		return ctx, nil
	}
	return begin(ctx, parent, "store "+operation, trace.SpanKindInternal,
		semconv.DBSystemNameKey.String("parley"), semconv.DBOperationName(operation))
}

// SetUsage sets the numbers of tokens that an agent has reported.
func (s *Span) SetUsage(input, output int32) {
	if s != nil {
		s.span.SetAttributes(semconv.GenAIUsageInputTokens(int(input)), semconv.GenAIUsageOutputTokens(int(output)))
	}
}

// End ends the span. If fault is not empty, the operation failed: it is the kind of failure, and contains nothing that
// a caller has sent.
func (s *Span) End(fault string) {
	if s == nil {
		return
	}
	if fault != "" {
		s.span.SetStatus(codes.Error, fault)
		s.span.SetAttributes(semconv.ErrorTypeKey.String(fault))
	}
	s.span.End()
}
