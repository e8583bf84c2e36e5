package bench

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parleyhq/parley/server/internal/app"
	"github.com/parleyhq/parley/store"
)

// withoutJournal are the settings with which every append is a transaction of the file.
var withoutJournal = []string{"--journal-budget=0", "--cache-bytes=0"}

// BenchmarkJournal compares appends with the journal and without it, within the budget: nothing is folded.
// PARLEY_BENCH_ROUNDS, PARLEY_BENCH_SLICE, PARLEY_BENCH_CONVERSATIONS and PARLEY_BENCH_ONLY apply as in
// BenchmarkService.
func BenchmarkJournal(b *testing.B) {
	rounds, slice := benchRounds(b)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 20_000)
	before := openBenchServer(b, conversations, withoutJournal...)
	after := openBenchServer(b, conversations, "--journal-age=1h")
	var all []*benchCase
	for _, callers := range []int{64, 1} {
		least, stretch := 1.9, 2.6
		if callers == 1 {
			least, stretch = 1.5, 2
		}
		for _, kind := range []struct {
			name   string
			caller func(s *benchServer) func() (call, error)
			least  float64
		}{
			{"gRPC", func(s *benchServer) func() (call, error) { return s.appending(false) }, least},
			{"gRPC with request_id", func(s *benchServer) func() (call, error) { return s.appending(true) }, 0},
			{"in process", func(s *benchServer) func() (call, error) { return s.appendingInProcess }, 0},
		} {
			old := newBenchCase("append", callers, kind.name+", no journal", kind.caller(before))
			c := comparison{with: old, least: kind.least}
			if kind.least > 0 {
				c.stretch = stretch
			}
			all = append(all, old, newBenchCase("append", callers, kind.name, kind.caller(after), c))
		}
	}
	measureAll(b, all, rounds, slice)
	report(b, all)
}

// BenchmarkMinute compares the appends of 64 callers in a minute, or in PARLEY_BENCH_SLICE, with the journal and
// without it. The time includes a clean stop, so it includes the fold of everything that was appended.
func BenchmarkMinute(b *testing.B) {
	if b.N > 1 {
		b.Skip("takes its own time: use -benchtime 1x")
	}
	rounds := benchSetting(b, "ROUNDS", positive, 3)
	slice := benchSetting(b, "SLICE", time.ParseDuration, time.Minute)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 100_000)
	layouts := []struct {
		flags []string
		dir   string
		ids   []string
		rates []float64
	}{{flags: withoutJournal}, {}}
	for i := range layouts {
		l := &layouts[i]
		l.dir = b.TempDir()
		b.Run("fill", func(b *testing.B) {
			l.ids = openBenchServer(b, conversations, append(l.flags, "--data-dir="+l.dir)...).ids
		})
	}
	for range rounds {
		for i := range layouts {
			l := &layouts[i]
			var done atomic.Int64
			var start time.Time
			b.Run("minute", func(b *testing.B) {
				s := openEmptyBenchServer(b, telemetry{}, append(l.flags, "--data-dir="+l.dir)...)
				s.ids, start = l.ids, time.Now()
				must(b, s.appendUntil(start.Add(slice), 64, &done))
			})
			l.rates = append(l.rates, float64(done.Load())/time.Since(start).Seconds())
		}
	}
	var table strings.Builder
	ratios := make([]float64, rounds)
	for i := range ratios {
		ratios[i] = layouts[1].rates[i] / layouts[0].rates[i]
	}
	row(&table, "appends a second without a journal", layouts[0].rates)
	row(&table, "appends a second with a journal", layouts[1].rates)
	b.ReportMetric(row(&table, "journal / none", ratios), "journal/none")
	b.ReportMetric(0, "ns/op")
	b.Log(table.String())
}

// appendUntil lets callers append to random conversations until a time.
func (s *benchServer) appendUntil(end time.Time, callers int, done *atomic.Int64) error {
	var group errgroup.Group
	for range callers {
		group.Go(func() error {
			for time.Now().Before(end) {
				if err := s.appendAny(); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	return group.Wait()
}

// BenchmarkTails measures the 99th percentile of the time of an append of 64 callers at half load, without folds and
// with a fold every second. It reports the part of the time in which a fold ran. A slice is four times as long as in
// BenchmarkService.
func BenchmarkTails(b *testing.B) {
	rounds, slice := benchRounds(b)
	slice *= 4
	conversations := benchSetting(b, "CONVERSATIONS", positive, 20_000)
	before := openBenchServer(b, conversations, withoutJournal...)
	after := openBenchServer(b, conversations, "--journal-age=1h")
	folding := openBenchServer(b, conversations, "--journal-age=1s")
	var done atomic.Int64
	must(b, after.appendUntil(time.Now().Add(slice), 64, &done))
	gap := time.Duration(float64(slice) * 64 * 2 / float64(done.Load())) // between two appends of a caller, at half load
	var rows [5][]float64
	for range rounds {
		none := p99Of(b, func() ([]time.Duration, error) { return before.pace(64, gap, slice) })
		quiet := p99Of(b, func() ([]time.Duration, error) { return after.pace(64, gap, slice) })
		start, foldTime := time.Now(), folding.foldTime()
		busy := p99Of(b, func() ([]time.Duration, error) { return folding.pace(64, gap, slice) })
		folded := (folding.foldTime() - foldTime).Seconds() / time.Since(start).Seconds()
		for i, v := range []float64{none, quiet, busy, busy / quiet, folded} {
			rows[i] = append(rows[i], v)
		}
	}
	var table strings.Builder
	for i, name := range []string{
		"half load, no journal, ms", "half load, ms", "half load with folds, ms", "with folds / without", "time of folds / time",
	} {
		b.ReportMetric(row(&table, name, rows[i]), metric(name))
	}
	b.ReportMetric(0, "ns/op")
	b.Logf("half load is %.0f appends a second\n%s", 64/gap.Seconds(), table.String())
}

// foldTime returns how long the folds took that have ended.
func (s *benchServer) foldTime() time.Duration {
	return s.store.Store.(*app.Storage).Store.(store.Inspector).State().Journal.FoldTime //nolint:errcheck,forcetypeassert // Known.
}

func p99Of(b *testing.B, measure func() ([]time.Duration, error)) float64 {
	b.Helper()
	took, err := measure()
	must(b, err)
	return p99Millis(took)
}

// pace lets callers append to random conversations, each at fixed times. It returns the time from each fixed time to
// the reply. So the result includes the delay of an append whose caller was still waiting for the one before.
func (s *benchServer) pace(callers int, gap, slice time.Duration) ([]time.Duration, error) {
	var group errgroup.Group
	took := make([][]time.Duration, callers)
	begin := time.Now()
	for i := range took {
		group.Go(func() error {
			for due := begin.Add(gap * time.Duration(i) / time.Duration(callers)); due.Sub(begin) < slice; due = due.Add(gap) {
				<-time.After(time.Until(due))
				if err := s.appendAny(); err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(due))
			}
			return nil
		})
	}
	err := group.Wait()
	return slices.Concat(took...), err
}
