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
	"strconv"
	"strings"

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

// scope is the name of the instrumentation in spans.
const scope = "github.com/parleyhq/parley/server"

// Tracer begins the spans of calls. A nil Tracer is off. Create it with Open, and close it.
type Tracer struct {
	provider                 *sdktrace.TracerProvider
	tracer                   trace.Tracer
	sender                   *sender
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
	maxWaiting, err := maxWaitingOf(environ)
	if err != nil {
		return nil, err
	}
	found := new(faults)
	otel.SetLogger(logr.New(found))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { found.add(variableOf(err.Error()) + err.Error()) }))
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
	s := &sender{SpanExporter: exporter, log: log, maxWaiting: int64(maxWaiting)}
	batches := sdktrace.NewBatchSpanProcessor(s, sdktrace.WithMaxQueueSize(maxWaiting))
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithSpanProcessor(&queue{batches, s}))
	if err := found.err(); err != nil {
		return nil, errors.Join(err, provider.Shutdown(ctx))
	}
	otel.SetLogger(logr.Discard()) // From here on, what matters arrives at the sender.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { s.report(ctx, err) }))
	return &Tracer{
		provider: provider, tracer: provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)), sender: s,
		serverKind:   trace.WithSpanKind(trace.SpanKindServer),
		internalKind: trace.WithSpanKind(trace.SpanKindInternal),
	}, nil
}

// LostSpans returns the number of spans that were lost since the start, because the collector was unreachable or slow.
func (t *Tracer) LostSpans() int64 {
	if t == nil {
		return 0
	}
	return t.sender.totalLost.Load()
}

// Close sends the spans that wait, until ctx ends. It returns how many were lost since the last report, and why.
func (t *Tracer) Close(ctx context.Context) (lost int64, err error) {
	if t == nil {
		return 0, nil
	}
	return t.sender.close(t.provider.Shutdown(ctx))
}

const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// protocolOf returns the protocol of the collector, or "" if tracing is off.
func protocolOf(environ []string) (string, error) {
	get := func(names ...string) (name, value string) { return lookUp(environ, names...) }
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

// maxWaitingOf returns how many spans may wait for the collector.
func maxWaitingOf(environ []string) (int, error) {
	name, text := lookUp(environ, "OTEL_BSP_MAX_QUEUE_SIZE")
	if text == "" {
		return sdktrace.DefaultMaxQueueSize, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxQueueSize {
		return 0, fmt.Errorf("%s: %.80q is not a number from 1 to %d", name, text, maxQueueSize)
	}
	return n, nil
}

// maxQueueSize is the maximum of OTEL_BSP_MAX_QUEUE_SIZE. A span needs about a kilobyte.
const maxQueueSize = 1 << 20

// lookUp returns the first of these variables that is not empty, and its value.
func lookUp(environ []string, names ...string) (name, value string) {
	for _, name := range names {
		for _, variable := range environ {
			if value, found := strings.CutPrefix(variable, name+"="); found && strings.TrimSpace(value) != "" {
				return name, strings.TrimSpace(value)
			}
		}
	}
	return "", ""
}
