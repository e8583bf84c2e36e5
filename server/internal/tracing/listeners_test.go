package tracing

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestHTTPSpans checks the spans of requests, also of those with a path or a method that no client should send.
func TestHTTPSpans(t *testing.T) {
	var spans []*tracev1.Span
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		batch := new(collectorv1.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, batch)
		}
		if err != nil {
			t.Errorf("request to the collector: %v", err)
		}
		for _, of := range batch.GetResourceSpans() {
			for _, scope := range of.GetScopeSpans() {
				spans = append(spans, scope.GetSpans()...)
			}
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	tracer, err := Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}, "v0",
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	handler := tracer.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "BREW" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	for _, request := range []struct{ method, path string }{
		{"GET", "/v1/agents"}, {"BREW", "/v1/%ff%fe"}, {"PUT", "/" + strings.Repeat("x", 1000)},
	} {
		handler.ServeHTTP(httptest.NewRecorder(),
			httptest.NewRequestWithContext(t.Context(), request.method, request.path, http.NoBody))
	}
	if _, err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	got := map[string]map[string]string{} // attributes by name
	for _, span := range spans {
		got[span.GetName()] = map[string]string{}
		for _, a := range span.GetAttributes() {
			if text := a.GetValue().GetStringValue(); a.GetKey() != "url.scheme" && text != "" {
				got[span.GetName()][a.GetKey()] = text
			}
		}
	}
	if diff := cmp.Diff(map[string]map[string]string{
		"GET":  {"http.request.method": "GET", "url.path": "/v1/agents"},
		"HTTP": {"http.request.method": "_OTHER", "url.path": "/v1/\uFFFD", "error.type": "503"},
		"PUT":  {"http.request.method": "PUT", "url.path": "/" + strings.Repeat("x", maxPathBytes-1)},
	}, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
