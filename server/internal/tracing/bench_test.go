package tracing

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// BenchmarkUnrecorded measures what the interceptor adds to a unary call whose trace is not recorded.
func BenchmarkUnrecorded(b *testing.B) {
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer collector.Close()
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	b.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
	b.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.0001")
	tracer, err := Open(b.Context(), os.Environ(), "bench", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	unary := tracer.Unary(false, func(error) (string, string) { return "OK", "" })
	info := &grpc.UnaryServerInfo{FullMethod: "/parley.v1.ConversationService/GetRoutingSummary"}
	handler := func(context.Context, any) (any, error) { return nil, nil } //nolint:nilnil // An empty call.
	ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs(
		":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.80"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := unary(ctx, nil, info, handler); err != nil {
			b.Fatal(err)
		}
	}
}
