package main

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

// BenchmarkService measures the service beside what bounds it: the same call without a
// service behind it, the store without gRPC before it, and bbolt's own db.Batch. Speed
// drifts with the machine, so all take turns in one run, each for a short slice in every
// round, and the ratios are those of slices in the same round. Client and server share the
// processors. The data lies in the directory for temporary files, which must be on a disk
// for the commits to mean anything; TMPDIR chooses another.
//
// The environment sets how long it takes: PARLEY_BENCH_ROUNDS, PARLEY_BENCH_SLICE,
// PARLEY_BENCH_CONVERSATIONS; PARLEY_BENCH_ONLY is a regular expression for the names of
// contestants, such as "append-64/gRPC$", for a profile.
func BenchmarkService(b *testing.B) {
	if b.N > 1 {
		b.Skip("takes its own time: use -benchtime 1x")
	}
	rounds := benchSetting(b, "ROUNDS", positive, 14)
	slice := benchSetting(b, "SLICE", time.ParseDuration, 250*time.Millisecond)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 20_000)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))

	start := time.Now()
	s := openBenchServer(b, conversations)
	all := slices.DeleteFunc(s.contestants(b), func(c *contestant) bool { return !only.MatchString(c.name) })
	b.Logf("%d conversations of %d messages of %d B written in %.0f s; now %d contestants in %d rounds of %v",
		conversations, benchMessages, benchContent, time.Since(start).Seconds(), len(all), rounds, slice)

	for round := range rounds + 1 { // The first warms up.
		for _, c := range order(all, round, rounds) {
			runtime.GC() // Nobody pays for the one before.
			rate, cost, err := c.measure(b, slice*time.Duration(c.slices))
			if err != nil {
				b.Fatalf("%s: %v", c.name, err)
			}
			if round > 0 {
				c.rates, c.costs = append(c.rates, rate), append(c.costs, cost)
			}
		}
	}
	report(b, all)
}

// benchSetting reads a variable of the environment.
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

// order lets each round begin with another contestant, and every other go backwards.
func order(all []*contestant, round, rounds int) []*contestant {
	first := round * len(all) / (rounds + 1)
	turns := slices.Concat(all[first:], all[:first])
	if round%2 == 1 {
		slices.Reverse(turns)
	}
	return turns
}

// contestant is something whose speed is measured.
type contestant struct {
	// name is that of the contest, with the number of callers, and the contestant's in it.
	name    string
	callers int
	// caller makes what one of the callers does over and over.
	caller func() (call, error)
	// beside are those that it is compared with.
	beside []comparison
	// slices is how many slices it gets at a time.
	slices int
	// saves, unless it is nil, counts what must happen once a caller each time.
	saves *atomic.Int64
	// rates a second, and processor time in µs that client and server took for each; one a
	// round.
	rates, costs []float64
}

func newContestant(contest string, callers int, name string, caller func() (call, error), beside ...comparison) *contestant {
	return &contestant{name: fmt.Sprintf("%s-%d/%s", contest, callers, name), callers: callers, caller: caller, beside: beside, slices: 1}
}

// call does something once, and counts what it got through.
type call func(done *atomic.Int64) error

// comparison is with another contestant.
type comparison struct {
	with *contestant
	// least is the ratio that is expected; 0: none is.
	least float64
}

// measure lets the callers work, and returns what they got through in a second and what
// each took, counted while all of them were at work.
func (c *contestant) measure(b *testing.B, slice time.Duration) (rate, cost float64, err error) {
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
		err = fmt.Errorf("answers were saved %d times", c.saves.Load())
	}
	stop.Store(true)
	return n / took.Seconds(), float64(used.Microseconds()) / max(n, 1), errors.Join(err, callers.Wait())
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// report prints a table for people and metrics for machines.
func report(b *testing.B, all []*contestant) {
	b.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "median of the rounds, least to most; %d processors\n", runtime.GOMAXPROCS(0))
	contest := ""
	for _, c := range all {
		if name, _, _ := strings.Cut(c.name, "/"); name != contest {
			contest = name
			fmt.Fprintf(&table, "\n%-48s %8s  %-14s %7s\n", contest, "a second", "", "CPU µs")
		}
		middle, least, most := spread(c.rates)
		cost, _, _ := spread(c.costs)
		fmt.Fprintf(&table, "  %-46s %8.0f  %-14s %7.1f\n",
			strings.TrimPrefix(c.name, contest+"/"), middle, fmt.Sprintf("%.0f–%.0f", least, most), cost)
		b.ReportMetric(middle, metric(c.name)+"/s")
	}
	fmt.Fprintf(&table, "\nratios\n")
	for _, c := range all {
		for _, other := range c.beside {
			if len(other.with.rates) > 0 {
				other.report(b, &table, c)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // It would be the length of the run.
	b.Log(table.String())
}

// report prints the ratio to another contestant in a line of the table.
func (o comparison) report(b *testing.B, table *strings.Builder, c *contestant) {
	b.Helper()
	ratios := make([]float64, len(c.rates))
	for round := range ratios {
		ratios[round] = c.rates[round] / o.with.rates[round]
	}
	contest, name, _ := strings.Cut(c.name, "/")
	_, other, _ := strings.Cut(o.with.name, "/")
	middle, least, most := spread(ratios)
	fmt.Fprintf(table, "  %-46s %8.2f  %-14s", contest+": "+name+" / "+other, middle, fmt.Sprintf("%.2f–%.2f", least, most))
	if o.least > 0 {
		verdict := "met"
		if middle < o.least {
			verdict = "not met"
		}
		fmt.Fprintf(table, " expected %g: %s", o.least, verdict)
	}
	table.WriteByte('\n')
	b.ReportMetric(middle, metric(c.name+"/"+other))
}

// metric makes a name one word.
func metric(name string) string { return strings.ReplaceAll(name, " ", "-") }

// spread returns the median and both ends.
func spread(values []float64) (median, least, most float64) {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]
}
