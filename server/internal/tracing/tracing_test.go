package tracing

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestProtocol checks which variables turn tracing on, and that values which the exporter would ignore are refused.
func TestProtocol(t *testing.T) {
	const on = "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318"
	for _, test := range []struct {
		environ, want, fault string
	}{
		{"", "", ""},
		{"OTEL_SERVICE_NAME=x", "", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=", "", ""},
		{on, "http/protobuf", ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c.example/v1/traces", "http/protobuf", ""},
		{"OTEL_TRACES_EXPORTER=otlp", "http/protobuf", ""},
		{on + " OTEL_TRACES_EXPORTER=none", "", ""},
		{on + " OTEL_SDK_DISABLED=TRUE", "", ""},
		{on + " OTEL_SDK_DISABLED=false", "http/protobuf", ""},
		{on + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "grpc", ""},
		{on + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", "http/protobuf", ""},
		{on + " OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "", "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{on + " OTEL_BSP_MAX_QUEUE_SIZE=0", "", "OTEL_BSP_MAX_QUEUE_SIZE"},
		{on + " OTEL_BSP_MAX_QUEUE_SIZE=many", "", "OTEL_BSP_MAX_QUEUE_SIZE"},
		{"OTEL_TRACES_EXPORTER=zipkin", "", "OTEL_TRACES_EXPORTER"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4317", "", "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://", "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
	} {
		environ := strings.Fields(test.environ)
		got, err := protocolOf(environ)
		if _, fault := maxWaitingOf(environ); fault != nil {
			got, err = "", fault
		}
		if got != test.want || (err != nil) != (test.fault != "") {
			t.Errorf("protocolOf(%s) = %q, %v, want %q and a fault of %q", test.environ, got, err, test.want, test.fault)
		}
		if err != nil && !strings.HasPrefix(err.Error(), test.fault+": ") {
			t.Errorf("protocolOf(%s) = %v, want the name %s first", test.environ, err, test.fault)
		}
	}
}

// TestFaultyVariables checks that values which the SDK cannot read are refused, and that the error contains no header.
func TestFaultyVariables(t *testing.T) {
	const headers = "OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_TRACES_HEADERS"
	for _, test := range []struct{ name, value, want string }{
		{"OTEL_EXPORTER_OTLP_HEADERS", "hunter2", headers},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "token=%hunter2", headers},
		{"OTEL_EXPORTER_OTLP_HEADERS", "to ken=hunter2", headers},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "OTEL_EXPORTER_OTLP_TIMEOUT: parse duration"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/none.pem", "OTEL_EXPORTER_OTLP_CERTIFICATE: read tls ca cert file"},
		{"OTEL_TRACES_SAMPLER", "sometimes", "OTEL_TRACES_SAMPLER: unsupported sampler: sometimes"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "many", "OTEL_BSP_MAX_QUEUE_SIZE is not a number"},
		{"OTEL_RESOURCE_ATTRIBUTES", "x", "OTEL_RESOURCE_ATTRIBUTES: is not of the form"},
	} {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			t.Setenv(test.name, test.value)
			var written bytes.Buffer
			tracer, err := Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "v0",
				slog.New(slog.NewTextHandler(&written, &slog.HandlerOptions{Level: slog.LevelDebug})))
			if tracer != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("Open() = %v, %v, want an error with %q", tracer, err, test.want)
			}
			if said := err.Error() + written.String(); strings.Contains(said, "hunter2") {
				t.Errorf("the error or the log contains the header: %s", said)
			}
		})
	}
	t.Run("sampler", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", "2")
		if _, err := Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "v0",
			slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "greater than 1.0") {
			t.Errorf("Open() with a ratio of 2 = %v, want an error", err)
		}
	})
}

// TestLongError checks that a reply of a collector does not fill the log.
func TestLongError(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("x", 1<<20), http.StatusNotFound)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	var written bytes.Buffer
	tracer, err := Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}, "v0",
		slog.New(slog.NewTextHandler(&written, nil)))
	if err != nil {
		t.Fatal(err)
	}
	_, span, _ := tracer.beginCall(t.Context(), propagation.MapCarrier{}, "call", tracer.serverKind)
	span.End("")
	if _, err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if text := written.String(); !strings.Contains(text, "404 Not Found") || len(text) > 2*maxErrorChars {
		t.Errorf("log = %.1000q with %d bytes, want the status, and less than %d", text, len(text), 2*maxErrorChars)
	}
}

// TestOff checks that a server without a collector has no tracer and no spans.
func TestOff(t *testing.T) {
	tracer, err := Open(t.Context(), []string{"OTEL_SERVICE_NAME=x"}, "v0", slog.New(slog.DiscardHandler))
	if tracer != nil || err != nil {
		t.Fatalf("Open() without a collector = %v, %v, want nil", tracer, err)
	}
	next := http.NotFoundHandler()
	w := httptest.NewRecorder()
	tracer.HTTP(next).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	if w.Code != http.StatusNotFound {
		t.Errorf("status without a tracer = %d, want 404", w.Code)
	}
	allocations := testing.AllocsPerRun(100, func() {
		ctx, turn := BeginTurn(t.Context(), t.Context(), "c", "t")
		_, agent := BeginAgent(ctx, "remote", "a", "c")
		_, read := BeginStore(ctx, "read")
		agent.SetUsage(1, 2)
		for _, span := range []*Span{turn, agent, read} {
			span.End("failed")
		}
		if TraceID(ctx) != "" {
			t.Error("TraceID() without a span is not empty")
		}
	})
	if allocations > 0 {
		t.Errorf("a call without a tracer allocates %v times, want 0", allocations)
	}
	Inject(t.Context(), func(string, string) { t.Error("Inject() without a span has a trace context") })
	if _, err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// TestUnreachable checks that a collector which never answers delays no span, is reported once, and that each lost span
// is counted.
func TestUnreachable(t *testing.T) {
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // Nothing accepts.
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			environ := map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + silent.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
				"OTEL_BSP_EXPORT_TIMEOUT": "50", // ms
			}
			var list []string
			for name, value := range environ {
				t.Setenv(name, value)
				list = append(list, name+"="+value)
			}
			var written bytes.Buffer
			tracer, err := Open(t.Context(), list, "v0", slog.New(slog.NewTextHandler(&written, nil)))
			if err != nil {
				t.Fatal(err)
			}
			const spans = 20_000
			for range spans {
				_, span, _ := tracer.beginCall(t.Context(), propagation.MapCarrier{}, "call", tracer.serverKind)
				span.End("")
			}
			lost, closed := tracer.Close(t.Context())
			for _, number := range regexp.MustCompile(`lost_spans=(\d+)`).FindAllStringSubmatch(written.String(), -1) {
				n, err := strconv.ParseInt(number[1], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				lost += n
			}
			if got := tracer.LostSpans(); got != spans {
				t.Errorf("LostSpans() = %d, want %d", got, spans)
			}
			if lost != spans {
				t.Errorf("log = %q, Close() = %v: %d spans lost, want %d", written.String(), closed, lost, spans)
			}
			if got := strings.Count(written.String(), "spans not sent to the collector"); got != 1 {
				t.Errorf("log = %q, want one report", written.String())
			}
		})
	}
}

// TestUnsampled checks that a trace which its caller does not record has no spans below the call, and that agents
// learn that.
func TestUnsampled(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		t.Error("the collector received spans, want none")
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	tracer, err := Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}, "v0",
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx, call, _ := tracer.beginCall(t.Context(), propagation.MapCarrier{"traceparent": "00-" + id + "-00f067aa0ba902b7-00"},
		"call", tracer.serverKind)
	turnContext, turn := BeginTurn(ctx, t.Context(), "c", "t")
	if turn != nil {
		t.Error("BeginTurn() of a trace that is not recorded has a span")
	}
	sent := map[string]string{}
	Inject(turnContext, func(key, value string) { sent[key] = value })
	if got := sent["traceparent"]; !strings.HasPrefix(got, "00-"+id+"-") || !strings.HasSuffix(got, "-00") {
		t.Errorf("trace context of the agent = %q, want the trace %s, not recorded", got, id)
	}
	if TraceID(ctx) != id {
		t.Errorf("TraceID() = %q, want %s", TraceID(ctx), id)
	}
	call.End("")
	if _, err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// TestLogHandler checks that entries have the id of the trace once, and none without a trace.
func TestLogHandler(t *testing.T) {
	tracer, err := Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "v0",
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx, call, _ := tracer.beginCall(t.Context(), propagation.MapCarrier{"traceparent": "00-" + id + "-00f067aa0ba902b7-00"},
		"call", tracer.serverKind)
	var written bytes.Buffer
	log := slog.New(LogHandler(slog.NewTextHandler(&written, nil))).With("tenant", "acme")
	log.InfoContext(ctx, "in the trace")
	log.InfoContext(t.Context(), "outside")
	lines := strings.Split(written.String(), "\n")
	if !strings.HasSuffix(lines[0], "tenant=acme trace_id="+id) || strings.Contains(lines[1], "trace_id") {
		t.Errorf("entries = %q, want trace_id=%s in the first only", lines, id)
	}
	call.End("")
	if _, err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}
