// Package tracing records what a call does as spans of OpenTelemetry, and sends them to a collector.
//
// It is off unless the environment variables of OpenTelemetry configure it. Then [Open] returns nil, no code of
// OpenTelemetry runs, and the functions of this package only look for a span in a context and find none. Spans begin
// at a listener; the functions that begin other spans do so only below one. Start at [Tracer].
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// reportInterval is the minimum time between two reports of spans that could not be sent.
const reportInterval = time.Minute

// scope is the name of the instrumentation in spans.
const scope = "github.com/parleyhq/parley/server"

// Tracer begins the spans of calls. A nil Tracer is off. Create it with Open, and close it.
type Tracer struct {
	provider                 *sdktrace.TracerProvider
	tracer                   trace.Tracer
	serverKind, internalKind trace.SpanStartOption
}

// Open returns a tracer as the variables of OpenTelemetry in environ configure it, or nil if they turn tracing off or
// name no collector. The SDK reads further variables from the environment of the process: those of the sampler, of
// the batches, of the limits of spans, of the resource, and of the exporter. version is that of the program. An error
// says which variables are faulty; it contains no credential. Open does not connect: a collector that is unreachable
// is reported to log once a minute, and delays no call.
func Open(ctx context.Context, environ []string, version string, log *slog.Logger) (*Tracer, error) {
	protocol, err := protocolOf(environ)
	if err != nil || protocol == "" {
		return nil, err
	}
	found := new(faults)
	otel.SetLogger(logr.New(found))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { found.add(err.Error()) }))
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("parleyd"), semconv.ServiceVersion(version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv(),
	)
	if err != nil {
		return nil, errors.New("OTEL_RESOURCE_ATTRIBUTES: is not of the form name=value,name=value")
	}
	client := otlptracehttp.NewClient()
	if protocol == protocolGRPC {
		client = otlptracegrpc.NewClient()
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	r := &reporter{SpanExporter: exporter, log: log}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithBatcher(r))
	if err := found.err(); err != nil {
		return nil, errors.Join(err, provider.Shutdown(ctx))
	}
	otel.SetLogger(logr.Discard()) // From here on, what matters arrives at the reporter.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { r.report(ctx, err, 0) }))
	return &Tracer{
		provider: provider, tracer: provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		serverKind:   trace.WithSpanKind(trace.SpanKindServer),
		internalKind: trace.WithSpanKind(trace.SpanKindInternal),
	}, nil
}

// Close sends the spans that wait, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// protocolOf returns the protocol of the collector, or "" if tracing is off.
func protocolOf(environ []string) (string, error) {
	get := func(names ...string) (name, value string) {
		for _, name := range names {
			for _, variable := range environ {
				if value, found := strings.CutPrefix(variable, name+"="); found && strings.TrimSpace(value) != "" {
					return name, strings.TrimSpace(value)
				}
			}
		}
		return "", ""
	}
	if _, disabled := get("OTEL_SDK_DISABLED"); strings.EqualFold(disabled, "true") {
		return "", nil
	}
	name, exporter := get("OTEL_TRACES_EXPORTER")
	if exporter == "none" {
		return "", nil
	}
	endpointName, endpoint := get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch {
	case exporter != "" && exporter != "otlp":
		return "", fmt.Errorf("%s: %.80q is not supported; use otlp or none", name, exporter)
	case endpoint == "" && exporter == "":
		return "", nil
	case endpoint != "":
		// The exporter would ignore an address that it cannot parse, and use its default.
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return "", fmt.Errorf("%s: the value is not a URL; use the form http://localhost:4318", endpointName)
		}
	}
	switch name, protocol := get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "":
		return protocolHTTP, nil
	case protocolHTTP, protocolGRPC:
		return protocol, nil
	default:
		return "", fmt.Errorf("%s: %.80q is not supported; use %s or %s", name, protocol, protocolHTTP, protocolGRPC)
	}
}

// reporter is an exporter that reports failures to the log, once in reportInterval.
type reporter struct {
	sdktrace.SpanExporter
	log *slog.Logger

	mu   sync.Mutex
	last time.Time // of the last report
	lost int       // spans not sent since then
}

// ExportSpans sends spans. It always returns nil: spans that cannot be sent are dropped and counted.
func (r *reporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := r.SpanExporter.ExportSpans(ctx, spans); err != nil {
		r.report(ctx, err, len(spans))
	}
	return nil
}

func (r *reporter) report(ctx context.Context, err error, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost += lost
	if errors.Is(err, context.Canceled) || time.Since(r.last) < reportInterval {
		return
	}
	r.log.WarnContext(ctx, "spans not sent to the collector", "error", err, "lost_spans", r.lost)
	r.last, r.lost = time.Now(), 0
}
