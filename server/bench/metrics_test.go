package bench

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/metrics"
	"github.com/parleyhq/parley/server/internal/tracing"
)

// The expected minimum ratios of the speed with telemetry and without.
const (
	metricsGoal = 0.97
	tracesGoal  = 0.95
)

// BenchmarkTelemetry compares three servers of one store: one without telemetry, one with metrics, which are scraped
// every second, and entries for calls that failed, and one that sends 1 % of its traces to a collector. The environment
// variables are those of BenchmarkService; the default of PARLEY_BENCH_CONVERSATIONS is 2000.
func BenchmarkTelemetry(b *testing.B) {
	rounds := benchSetting(b, "ROUNDS", positive, 14)
	slice := benchSetting(b, "SLICE", time.ParseDuration, 250*time.Millisecond)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 2000)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))
	paused := new(atomic.Bool)
	measured := openEmptyBenchServer(b, telemetry{
		calls: calllog.Errors, metrics: metrics.New(metrics.Options{}), paused: paused,
	})
	must(b, measured.fill(conversations))
	silent := measured.with(b, telemetry{calls: calllog.Off})
	tracer, collected := openTracer(b)
	traced := measured.with(b, telemetry{calls: calllog.Off, tracer: tracer})
	stop := make(chan struct{})
	var scraping errgroup.Group
	scraping.Go(func() error { return measured.scrapeEverySecond(stop) })
	defer func() { close(stop); must(b, scraping.Wait()) }()
	var all []*benchCase
	for _, callers := range []int{1, 64} {
		for group, calls := range map[string]func(*benchServer) func() (call, error){
			"append":  func(s *benchServer) func() (call, error) { return s.appending(false) },
			"load":    func(s *benchServer) func() (call, error) { return s.loading },
			"summary": func(s *benchServer) func() (call, error) { return s.readingSummary },
			"chat":    func(s *benchServer) func() (call, error) { return s.echoing },
		} {
			of := func(s *benchServer) func() (call, error) {
				return func() (call, error) { paused.Store(s != measured); return calls(s)() }
			}
			off := newBenchCase(group, callers, "off", of(silent))
			all = append(all, off,
				newBenchCase(group, callers, "metrics and call entries", of(measured), comparison{with: off, least: metricsGoal}),
				newBenchCase(group, callers, "traces", of(traced), comparison{with: off, least: tracesGoal}))
		}
	}
	all = slices.DeleteFunc(all, func(c *benchCase) bool { return !only.MatchString(c.name) })
	measureAll(b, all, rounds, slice)
	report(b, all)
	_, err := tracer.Close(b.Context())
	must(b, err)
	if collected.Load() == 0 {
		b.Error("the collector received nothing")
	}
}

// openTracer returns a tracer that samples 1 % of all traces, and the count of requests that its collector received.
func openTracer(b *testing.B) (*tracing.Tracer, *atomic.Int64) {
	b.Helper()
	collected := new(atomic.Int64)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		collected.Add(1)
		w.WriteHeader(http.StatusOK)
	}))
	b.Cleanup(collector.Close)
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	b.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
	b.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.01")
	tracer, err := tracing.Open(b.Context(), os.Environ(), "bench", slog.New(slog.DiscardHandler))
	must(b, err)
	return tracer, collected
}

// echoing returns a call that runs a turn of the agent echo.
func (s *benchServer) echoing() (call, error) {
	r := &parleyv1.ChatRequest{Content: "hello", Agent: "echo", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE}
	return func(done *atomic.Int64) error {
		r.ConversationId = s.anyID()
		stream, err := s.client.Chat(s.ctx, r)
		for err == nil {
			_, err = stream.Recv()
		}
		done.Add(1)
		if err == io.EOF { //nolint:errorlint // Recv returns it as it is.
			return nil
		}
		return err
	}, nil
}

// scrapeEverySecond reads the metrics until stop is closed.
func (s *benchServer) scrapeEverySecond(stop <-chan struct{}) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-ticker.C:
			if _, err := s.scrape(); err != nil {
				return err
			}
		}
	}
}

// scrape reads the metrics once, and returns their size.
func (s *benchServer) scrape() (int64, error) {
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://"+s.http+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	reply, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("GET /metrics: %s", reply.Status)
	}
	return io.Copy(io.Discard, reply.Body)
}

// BenchmarkScrape measures a scrape of a server with PARLEY_BENCH_CONVERSATIONS conversations of one message. The
// default is 20,000.
func BenchmarkScrape(b *testing.B) {
	conversations := benchSetting(b, "CONVERSATIONS", positive, 20_000)
	s := openEmptyBenchServer(b, telemetry{metrics: metrics.New(metrics.Options{})})
	message := benchMessage(parleyv1.Role_ROLE_USER)
	message.Id = "m"
	var callers errgroup.Group
	callers.SetLimit(64)
	for i := range conversations {
		callers.Go(func() error { return s.appendTo(fmt.Sprint(i), []*parleyv1.Message{message}) })
	}
	must(b, callers.Wait())
	var times []time.Duration
	size := int64(0)
	for range 200 {
		start := time.Now()
		n, err := s.scrape()
		must(b, err)
		times, size = append(times, time.Since(start)), n
	}
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(times[len(times)/2].Seconds()*1000, "median-ms")
	b.ReportMetric(times[len(times)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(float64(size), "bytes")
	b.Logf("%d conversations: median %v, 99th percentile %v", conversations, times[len(times)/2],
		times[len(times)*99/100])
}
