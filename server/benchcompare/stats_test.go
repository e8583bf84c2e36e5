package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{7}, spread{median: 7, least: 7, most: 7, n: 1}},
		{[]float64{9, 1, 5}, spread{median: 5, least: 1, most: 9, n: 3}},
		{[]float64{4, 1, 2, 10}, spread{median: 3, least: 1, most: 10, n: 4}},
	} {
		before := slices.Clone(c.values)
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("spreadOf(%v) = %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(c.values, before) {
			t.Errorf("spreadOf changed its argument to %v, want %v", c.values, before)
		}
	}
}

// TestRatios checks that a machine which is half as fast in one round does not change the ratios.
func TestRatios(t *testing.T) {
	for _, c := range []struct {
		of, by, want []float64
	}{
		{[]float64{300, 150, 600}, []float64{100, 50, 200}, []float64{3, 3, 3}},
		{[]float64{1, 2}, []float64{1}, nil},
		{[]float64{1, 2}, []float64{1, 0}, nil},
		{nil, nil, nil},
	} {
		if diff := cmp.Diff(c.want, ratios(c.of, c.by)); diff != "" {
			t.Errorf("ratios(%v, %v) (-want +got):\n%s", c.of, c.by, diff)
		}
	}
}

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for _, c := range []struct {
		durations []time.Duration
		p         float64
		want      time.Duration
	}{
		{nil, 99, 0},
		{[]time.Duration{5}, 99, 5},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := percentile(c.durations, c.p); got != c.want {
			t.Errorf("percentile(%d durations, %v) = %d, want %d", len(c.durations), c.p, got, c.want)
		}
	}
}

func TestTimings(t *testing.T) {
	var all timings
	start := time.Unix(1000, 0)
	for i := range 10 { // Call i takes i + 1 s and starts 10 s after the previous one.
		all.add(start.Add(time.Duration(i)*10*time.Second), time.Duration(i+1)*time.Second)
	}
	for _, c := range []struct {
		from, to time.Duration
		want     time.Duration
	}{
		{0, 100 * time.Second, 10 * time.Second},
		{0, 20 * time.Second, 2 * time.Second},
		{32 * time.Second, 33 * time.Second, 4 * time.Second}, // within the call
		{35 * time.Second, 39 * time.Second, 0},
	} {
		if got := all.percentile(start.Add(c.from), start.Add(c.to), 100); got != c.want {
			t.Errorf("percentile(%v, %v, 100) = %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

// TestOrder checks that each measurement is made once in a round, and that rounds start with different
// ones.
func TestOrder(t *testing.T) {
	for n := range 40 {
		all := make([]*measurement, n)
		for i := range all {
			all[i] = &measurement{callers: i}
		}
		firsts := make(map[int]bool)
		for round := range 6 {
			var turns []int
			for _, c := range order(all, round, 5) {
				turns = append(turns, c.callers)
			}
			if n > 0 {
				firsts[turns[0]] = true
			}
			slices.Sort(turns)
			for i, turn := range turns {
				if turn != i {
					t.Fatalf("order(%d measurements, round %d) = %v, want each once", n, round, turns)
				}
			}
			if len(turns) != n {
				t.Fatalf("order(%d measurements, round %d) = %d measurements, want %d", n, round, len(turns), n)
			}
		}
		if want := min(n, 3); len(firsts) < want {
			t.Errorf("first measurements of 6 rounds of %d = %d different ones, want %d or more", n, len(firsts), want)
		}
	}
}

func TestNumber(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 0.65: "0.65", 0.8: "0.8", 1: "1", 1.256: "1.26", 10: "10", 12.34: "12.3", 1234.5: "1234", math.Pi: "3.14",
	} {
		if got := number(value); got != want {
			t.Errorf("number(%v) = %q, want %q", value, got, want)
		}
	}
	for value, want := range map[int]string{7: "7", 999: "999", 1000: "1k", 1234: "1234", 20_000: "20k", 100_000: "100k", 1_000_000: "1M", 1_500_000: "1.5M"} {
		if got := count(value); got != want {
			t.Errorf("count(%d) = %q, want %q", value, got, want)
		}
	}
}
