package bench

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/metrics"
)

// metricsGoal is the expected minimum ratio of the speed with metrics and without.
const metricsGoal = 0.97

// BenchmarkMetrics compares a server with metrics, which is scraped every second, with one without. The environment
// variables are those of BenchmarkService; the default of PARLEY_BENCH_CONVERSATIONS is 2000.
func BenchmarkMetrics(b *testing.B) {
	rounds := benchSetting(b, "ROUNDS", positive, 14)
	slice := benchSetting(b, "SLICE", time.ParseDuration, 250*time.Millisecond)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 2000)
	without := openBenchServer(b, conversations)
	with := openEmptyBenchServer(b, metrics.New(metrics.Options{}))
	must(b, with.fill(conversations))
	stop := make(chan struct{})
	var scraping errgroup.Group
	scraping.Go(func() error { return with.scrapeEverySecond(stop) })
	defer func() { close(stop); must(b, scraping.Wait()) }()
	var all []*benchCase
	for _, callers := range []int{1, 64} {
		for group, calls := range map[string]func(*benchServer) func() (call, error){
			"append":  func(s *benchServer) func() (call, error) { return s.appending(false) },
			"load":    func(s *benchServer) func() (call, error) { return s.loading },
			"summary": func(s *benchServer) func() (call, error) { return s.readingSummary },
			"chat":    func(s *benchServer) func() (call, error) { return s.echoing },
		} {
			off := newBenchCase(group, callers, "without metrics", calls(without))
			all = append(all, off, newBenchCase(group, callers, "with metrics", calls(with), comparison{off, metricsGoal}))
		}
	}
	measureAll(b, all, rounds, slice)
	report(b, all)
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
	s := openEmptyBenchServer(b, metrics.New(metrics.Options{}))
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
