package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// benchWatchedConversations is the number of conversations in the benchmarks of watchers. The environment sets
// rounds and slices as for BenchmarkService.
const benchWatchedConversations = 2000

// stalledWatchers is the number of watchers that do not read while appends are measured.
const stalledWatchers = 10

// BenchmarkStalledWatcher compares the 99th percentile of the time of appends with and without watchers
// of all conversations that do not read. Both cases run in every round.
func BenchmarkStalledWatcher(b *testing.B) {
	const callers, maxRatio = 64, 2
	rounds, slice := benchRounds(b)
	s := openBenchServer(b, benchWatchedConversations)
	var all [2][]time.Duration // without, with
	var slowest [2][]float64
	var ratios []float64
	measure := func(watchers int) []time.Duration {
		runtime.GC() // The garbage of the previous measurement must not slow this one down.
		closeWatchers := s.openWatchers(b, watchers, 1, nil)
		defer closeWatchers()
		took, err := s.timeAppends(callers, slice)
		must(b, err)
		return took
	}
	for round := range rounds + 1 { // The first warms up.
		var took [2][]time.Duration
		for i := range took {
			which := (round + i) % 2
			took[which] = measure(which * stalledWatchers)
		}
		if round == 0 {
			continue
		}
		for i := range took {
			all[i] = append(all[i], took[i]...)
			slowest[i] = append(slowest[i], p99Millis(took[i]))
		}
		ratios = append(ratios, p99Millis(took[1])/p99Millis(took[0]))
	}
	// The slowest appends of a slice all belong to one or two commits, which depend on the disk. Only the
	// percentile over all slices is meaningful.
	ratio := p99Millis(all[1]) / p99Millis(all[0])
	var table strings.Builder
	fmt.Fprintf(&table, "median of %d rounds, least to most; client and server share %d processors\n", rounds,
		runtime.GOMAXPROCS(0))
	row(&table, fmt.Sprintf("99 %% of the appends of %d callers within, ms", callers), slowest[0])
	row(&table, fmt.Sprintf("with %d stalled watchers", stalledWatchers), slowest[1])
	row(&table, "ratio", ratios)
	row(&table, "99 % of all appends of all rounds within, ms", []float64{p99Millis(all[0])})
	row(&table, fmt.Sprintf("with %d stalled watchers", stalledWatchers), []float64{p99Millis(all[1])})
	row(&table, "ratio", []float64{ratio})
	reportBound(&table, ratio, maxRatio)
	b.ReportMetric(ratio, "stalled/p99")
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

// Number of watchers of all conversations, and of their connections.
const (
	fanOutWatchers    = 1000
	fanOutConnections = 10
)

// BenchmarkFanOut measures the time until all watchers have received an append, minus the time of the
// append without watchers, divided by the number of watchers. One caller appends. Appends with and
// without watchers alternate in every round.
func BenchmarkFanOut(b *testing.B) {
	const maxMicros = 20
	rounds, slice := benchRounds(b)
	s := openBenchServer(b, benchWatchedConversations)
	var alone, fanned, costs, processor []float64
	measure := func(watchers int) (micros, used float64) {
		runtime.GC() // The garbage of the previous measurement must not slow this one down.
		receipts := newReceiptCounter(watchers)
		closeWatchers := s.openWatchers(b, watchers, fanOutConnections, receipts)
		defer closeWatchers()
		took, used, err := s.timeFanOut(b, receipts, slice)
		must(b, err)
		return took, used
	}
	for round := range rounds + 1 { // The first warms up.
		var took, used [2]float64
		for i := range took {
			which := (round + i) % 2
			took[which], used[which] = measure(which * fanOutWatchers)
		}
		if round > 0 {
			alone, fanned = append(alone, took[0]), append(fanned, took[1])
			costs = append(costs, (took[1]-took[0])/fanOutWatchers)
			processor = append(processor, (used[1]-used[0])/fanOutWatchers)
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "median of %d rounds, least to most; client and server share %d processors\n", rounds,
		runtime.GOMAXPROCS(0))
	row(&table, "an append without watchers, µs", alone)
	row(&table, fmt.Sprintf("until %d watchers have it, µs", fanOutWatchers), fanned)
	cost := row(&table, "the difference for each watcher, µs", costs)
	reportBound(&table, cost, maxMicros)
	row(&table, "processor time of that, client and server, µs", processor)
	b.ReportMetric(cost, "fan-out-µs/watcher")
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

func benchRounds(b *testing.B) (rounds int, slice time.Duration) {
	b.Helper()
	if b.N > 1 {
		b.Skip("takes its own time: use -benchtime 1x")
	}
	return benchSetting(b, "ROUNDS", positive, 14), benchSetting(b, "SLICE", time.ParseDuration, 250*time.Millisecond)
}

// row adds a line with the spread of values to the table, and returns their median.
func row(table *strings.Builder, name string, values []float64) float64 {
	middle, least, most := spread(values)
	fmt.Fprintf(table, "  %-46s %8.2f", name, middle)
	if len(values) > 1 {
		fmt.Fprintf(table, "  %.2f–%.2f", least, most)
	}
	table.WriteByte('\n')
	return middle
}

func reportBound(table *strings.Builder, value, most float64) {
	verdict := "met"
	if value > most {
		verdict = "not met"
	}
	fmt.Fprintf(table, "  expected at most %g: %s\n", most, verdict)
}

// receiptCounter counts the changes that watchers have received.
type receiptCounter struct {
	watchers int64
	received atomic.Int64
	all      chan struct{} // receives a value when every watcher has received one more change
}

func newReceiptCounter(watchers int) *receiptCounter {
	return &receiptCounter{watchers: int64(watchers), all: make(chan struct{}, 1)}
}

// openWatchers starts watches of all conversations and returns when all have started. If n is nil, the
// watchers do not read, and their streams have the smallest buffers.
func (s *benchServer) openWatchers(b *testing.B, watchers, connections int, n *receiptCounter) (closeWatchers func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if n == nil {
		const least = 64 << 10
		options = append(options, grpc.WithStaticStreamWindowSize(least), grpc.WithStaticConnWindowSize(least))
	}
	var closes []func() error
	var clients []parleyv1.ConversationServiceClient
	for range connections {
		conn, err := grpc.NewClient(s.conn.Target(), options...)
		must(b, err)
		closes, clients = append(closes, conn.Close), append(clients, parleyv1.NewConversationServiceClient(conn))
	}
	var opening errgroup.Group
	var reading sync.WaitGroup
	for i := range watchers {
		opening.Go(func() error {
			stream, err := clients[i%connections].WatchConversations(ctx, new(parleyv1.WatchConversationsRequest))
			if err == nil {
				_, err = stream.Recv() // the heartbeat
			}
			if err == nil && n != nil {
				reading.Go(func() { n.read(stream) })
			}
			return err
		})
	}
	must(b, opening.Wait())
	return func() {
		cancel()
		reading.Wait()
		for _, end := range closes {
			must(b, end())
		}
		for s.hub.Watchers() > 0 { // The server notices the closed streams after a moment.
			runtime.Gosched()
		}
	}
}

func (n *receiptCounter) read(stream grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]) {
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		if response.GetChange().GetMessage() == nil {
			continue
		}
		if n.received.Add(1)%n.watchers == 0 {
			n.all <- struct{}{}
		}
	}
}

// p99Millis returns the 99th percentile in ms.
func p99Millis(took []time.Duration) float64 {
	return slices.Sorted(slices.Values(took))[len(took)*99/100].Seconds() * 1000
}

// timeAppends lets callers append to random conversations and returns the time of each append.
func (s *benchServer) timeAppends(callers int, slice time.Duration) ([]time.Duration, error) {
	var group errgroup.Group
	took := make([][]time.Duration, callers)
	begin := time.Now().Add(slice / 4) // Before that, watchers fill the buffers of their streams.
	for i := range took {
		group.Go(func() error {
			for time.Since(begin) < slice {
				start := time.Now()
				if err := s.appendAny(); err != nil {
					return err
				}
				if start.After(begin) {
					took[i] = append(took[i], time.Since(start))
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return slices.Concat(took...), err
}

func (s *benchServer) appendAny() error {
	_, err := s.client.AppendMessages(s.ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: s.anyID(), Messages: []*parleyv1.Message{s.message},
	})
	return err
}

// timeFanOut appends messages one after the other, each when all watchers have received the previous one.
// It returns the median of the time, and the processor time, in µs.
func (s *benchServer) timeFanOut(
	b *testing.B, n *receiptCounter, slice time.Duration,
) (median, used float64, err error) {
	b.Helper()
	var took []float64
	before := processorTime(b)
	for begin := time.Now(); time.Since(begin) < slice; {
		start := time.Now()
		if err := s.appendAny(); err != nil {
			return 0, 0, err
		}
		if n.watchers > 0 {
			<-n.all
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/1000)
	}
	used = float64((processorTime(b) - before).Microseconds()) / float64(len(took))
	median, _, _ = spread(took)
	return median, used, nil
}
