// Package bench measures the service. `make bench` runs it. Start at [BenchmarkService].
package bench

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// BenchmarkService compares the service with its bounds: an empty call with a reply of the same size, the
// same call answered with a constant ("bound"), the store without gRPC, and bbolt's db.Batch. The speed
// of a machine drifts, so every case runs for a short slice in every round, and the ratios are those of
// slices in the same round. Client and server share the processors. The data is in the directory for
// temporary files. It must be on a disk, since commits are measured; TMPDIR selects another one.
//
// Environment variables set the length of the run: PARLEY_BENCH_ROUNDS, PARLEY_BENCH_SLICE and
// PARLEY_BENCH_CONVERSATIONS. PARLEY_BENCH_ONLY is a regular expression of the names of the cases to
// run, for example "append-64/gRPC$" for a profile.
func BenchmarkService(b *testing.B) {
	if b.N > 1 {
		b.Skip("benchmark sets its own time: use -benchtime 1x")
	}
	rounds := benchSetting(b, "ROUNDS", positive, 14)
	slice := benchSetting(b, "SLICE", time.ParseDuration, 250*time.Millisecond)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 20_000)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))

	start := time.Now()
	s := openBenchServer(b, conversations)
	all := slices.DeleteFunc(s.benchCases(b), func(c *benchCase) bool { return !only.MatchString(c.name) })
	b.Logf("%d conversations of %d messages of %d B written in %.0f s; now %d cases in %d rounds of %v",
		conversations, benchMessages, benchContent, time.Since(start).Seconds(), len(all), rounds, slice)

	measureAll(b, all, rounds, slice)
	report(b, all)
}

// measureAll measures all cases in each round.
func measureAll(b *testing.B, all []*benchCase, rounds int, slice time.Duration) {
	b.Helper()
	for round := range rounds + 1 { // The first warms up.
		for _, c := range order(all, round, rounds) {
			runtime.GC() // The garbage of the previous case must not slow this one down.
			rate, cost, err := c.measure(b, slice*time.Duration(c.slices))
			if err != nil {
				b.Fatalf("%s: %v", c.name, err)
			}
			if round > 0 {
				c.rates, c.costs = append(c.rates, rate), append(c.costs, cost)
			}
		}
	}
}

// benchSetting parses an environment variable. If it is not set, the result is otherwise.
func benchSetting[T any](b *testing.B, name string, parse func(string) (T, error), otherwise T) T {
	b.Helper()
	text := os.Getenv("PARLEY_BENCH_" + name)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	if err != nil {
		b.Fatalf("PARLEY_BENCH_%s: %v", name, err)
	}
	return value
}

func positive(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err == nil && n < 1 {
		err = fmt.Errorf("%d is less than 1", n)
	}
	return n, err
}

// order returns the order of a round. Each round starts with another case, and every other round is
// reversed.
func order(all []*benchCase, round, rounds int) []*benchCase {
	first := round * len(all) / (rounds + 1)
	ordered := slices.Concat(all[first:], all[:first])
	if round%2 == 1 {
		slices.Reverse(ordered)
	}
	return ordered
}

// benchCase is a call whose speed is measured.
type benchCase struct {
	// name is the group, the number of callers, and the name within the group.
	name    string
	callers int
	// caller returns the call that one of the callers makes repeatedly.
	caller func() (call, error)
	// comparisons are the cases that it is compared with.
	comparisons []comparison
	// slices is the number of slices that it runs in each round.
	slices int
	// saves, if not nil, counts events. At least one per caller must happen in each round.
	saves *atomic.Int64
	// rates are calls per second, and costs the processor time per call of client and server in µs. Both
	// have one value per round.
	rates, costs []float64
}

func newBenchCase(
	group string, callers int, name string, caller func() (call, error), comparisons ...comparison,
) *benchCase {
	return &benchCase{
		name: fmt.Sprintf("%s-%d/%s", group, callers, name), callers: callers, caller: caller, comparisons: comparisons,
		slices: 1,
	}
}

// call makes one call and adds the number of operations to done.
type call func(done *atomic.Int64) error

// comparison is a comparison with another case.
type comparison struct {
	with *benchCase
	// least is the expected minimum ratio, and stretch a better ratio to reach if possible. 0 means that there is none.
	least, stretch float64
}

// measure runs the callers. It returns the operations per second and the processor time of each,
// counted while all callers work.
func (c *benchCase) measure(b *testing.B, slice time.Duration) (rate, cost float64, err error) {
	b.Helper()
	var done atomic.Int64
	var stop atomic.Bool
	var callers errgroup.Group
	if c.saves != nil {
		c.saves.Store(0)
	}
	for range c.callers {
		once, err := c.caller()
		if err != nil {
			return 0, 0, err
		}
		callers.Go(func() error {
			for !stop.Load() {
				if err := once(&done); err != nil {
					return err
				}
			}
			return nil
		})
	}
	<-time.After(slice / 4)
	before, start, used := done.Load(), time.Now(), processorTime(b)
	<-time.After(slice)
	n, took, used := float64(done.Load()-before), time.Since(start), processorTime(b)-used
	if c.saves != nil && c.saves.Load() < int64(c.callers) {
		err = fmt.Errorf("saves of partial answers = %d, want %d or more", c.saves.Load(), c.callers)
	}
	stop.Store(true)
	return n / took.Seconds(), float64(used.Microseconds()) / max(n, 1), errors.Join(err, callers.Wait())
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// report logs a table and reports the metrics.
func report(b *testing.B, all []*benchCase) {
	b.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "median of the rounds, least to most; %d processors\n", runtime.GOMAXPROCS(0))
	group := ""
	for _, c := range all {
		if name, _, _ := strings.Cut(c.name, "/"); name != group {
			group = name
			fmt.Fprintf(&table, "\n%-48s %8s  %-14s %7s\n", group, "a second", "", "CPU µs")
		}
		middle, least, most := spread(c.rates)
		cost, _, _ := spread(c.costs)
		fmt.Fprintf(&table, "  %-46s %8.0f  %-14s %7.1f\n",
			strings.TrimPrefix(c.name, group+"/"), middle, fmt.Sprintf("%.0f–%.0f", least, most), cost)
		b.ReportMetric(middle, metric(c.name)+"/s")
	}
	// When other work takes the processors, the ratio of the processor times varies less than that of the speeds.
	fmt.Fprintf(&table, "\n%-48s %8s  %-14s %5s\n", "ratios", "speed", "", "1 / CPU")
	for _, c := range all {
		for _, other := range c.comparisons {
			if len(other.with.rates) > 0 {
				other.report(b, &table, c)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

// report adds a line with the ratio to the table.
func (o comparison) report(b *testing.B, table *strings.Builder, c *benchCase) {
	b.Helper()
	ratios, costs := make([]float64, len(c.rates)), make([]float64, len(c.rates))
	for round := range ratios {
		ratios[round] = c.rates[round] / o.with.rates[round]
		costs[round] = o.with.costs[round] / c.costs[round]
	}
	group, name, _ := strings.Cut(c.name, "/")
	_, other, _ := strings.Cut(o.with.name, "/")
	middle, least, most := spread(ratios)
	fmt.Fprintf(table, "  %-46s %8.2f  %-14s", group+": "+name+" / "+other, middle, fmt.Sprintf("%.2f–%.2f", least, most))
	middleCost, leastCost, mostCost := spread(costs)
	fmt.Fprintf(table, " %5.2f  %-12s", middleCost, fmt.Sprintf("%.2f–%.2f", leastCost, mostCost))
	if o.least > 0 {
		verdict := "met"
		if middle < o.least {
			verdict = "not met"
		}
		if o.stretch > 0 && middle >= o.stretch {
			verdict = fmt.Sprintf("met, and %g", o.stretch)
		}
		fmt.Fprintf(table, " expected %g: %s", o.least, verdict)
	}
	table.WriteByte('\n')
	b.ReportMetric(middle, metric(c.name+"/"+other))
}

// metric returns a name without spaces.
func metric(name string) string { return strings.ReplaceAll(name, " ", "-") }

// spread returns the median, minimum and maximum.
func spread(values []float64) (median, least, most float64) {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]
}
