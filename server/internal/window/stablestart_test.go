package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// simulation is a conversation that grows by one exchange in each turn.
type simulation struct {
	retention   int           // maximum number of stored messages; 0 for no limit
	exchange    func() string // messages of the next exchange, in the form of history
	size        func() int    // content size of the next message in bytes
	firstNumber int32         // added to sequences and exchanges; a large value gives them all the same encoded length
}

// movement describes how a window moved in a simulation.
type movement struct {
	durations []int   // number of turns for which each start remained, without the first and the last start
	steps     []int64 // bytes from each of these starts to the next
	smallest  int     // number of exchanges in the smallest of the largest windows
	exchange  int64   // bytes of the largest exchange
}

// run simulates this number of turns.
func (s simulation) run(t *testing.T, turns int, w *parleyv1.ContextWindow) *movement {
	t.Helper()
	full := &parleyv1.ContextWindow{MaxMessages: w.MaxMessages, MaxExchanges: w.MaxExchanges, MaxBytes: w.MaxBytes}
	c := &movement{}
	var all []*parleyv1.Message
	offsets := []int64{0}
	current, duration, moved := 0, 0, false
	for turn := range turns {
		end := len(all)
		for _, m := range history(strings.Fields(s.exchange())...) {
			m.Content = strings.Repeat("x", s.size())
			all = append(all, m)
			m.Sequence, m.Exchange = s.firstNumber+int32(len(all)), s.firstNumber+int32(turn+1)
		}
		oldest := 0
		if s.retention > 0 {
			oldest = max(0, len(all)-s.retention)
		}
		offsets = append(offsets[:end], offsetsOf(offsets[end], all[end:])...)
		c.exchange = max(c.exchange, offsets[len(all)]-offsets[end])

		stored := all[oldest:]
		first := oldest + Start(stored, offsets[oldest:], w)
		largest := all[oldest+Start(stored, offsets[oldest:], full):]
		switch missing := missingPart(all[first:], largest, offsets, w); {
		case first == len(all):
			t.Fatalf("turn %d: empty window", turn)
		case missing != "":
			t.Fatalf("turn %d: %s, want about half", turn, missing)
		case first < current:
			t.Fatalf("turn %d: Start = %d, less than %d before", turn, first, current)
		case first == current || turn == 0:
			current, duration = first, duration+1
		default:
			if moved {
				c.durations, c.steps = append(c.durations, duration), append(c.steps, offsets[first]-offsets[current])
			}
			current, duration, moved = first, 1, true
		}
		if n := exchanges(largest); moved && (c.smallest == 0 || n < c.smallest) {
			c.smallest = n
		}
	}
	if len(c.durations) < 20 {
		t.Fatalf("the window moved %d times in %d turns, want at least 20", len(c.durations), turns)
	}
	return c
}

func pairExchange() string { return "u a" }

func evenSize() int { return 100 }

func average(durations []int) float64 {
	sum := 0
	for _, duration := range durations {
		sum += duration
	}
	return float64(sum) / float64(len(durations))
}

// TestStableStartLastsHalfTheBound: if the bound limits the window, a start remains for half the
// bound, exactly in exchanges, and to within an exchange in messages and bytes.
func TestStableStartLastsHalfTheBound(t *testing.T) {
	for _, limit := range []int{0, 20, 21} {
		for _, bound := range []int32{1, 2, 3, 4, 5, 6, 8, 9, 10, 16} {
			if 2*int(bound) > limit && limit > 0 {
				continue // less is stored than the bound allows: see the next test
			}
			t.Run(fmt.Sprintf("max_exchanges %d of %d stored", bound, limit), func(t *testing.T) {
				s := simulation{retention: limit, exchange: pairExchange, size: evenSize}
				durations := s.run(t, 500, &parleyv1.ContextWindow{MaxExchanges: bound, CacheStable: true}).durations
				want := int(bound+1) / 2
				if slices.Min(durations) != want || slices.Max(durations) != want {
					t.Errorf("starts remain for %v turns, want %d each", durations, want)
				}
			})
		}
		for _, bound := range []int32{2, 4, 6, 8, 10, 12, 14, 16, 20} {
			t.Run(fmt.Sprintf("max_messages %d of %d stored", bound, limit), func(t *testing.T) {
				s := simulation{retention: limit, exchange: pairExchange, size: evenSize}
				durations := s.run(t, 500, &parleyv1.ContextWindow{MaxMessages: bound, CacheStable: true}).durations
				if slices.Min(durations) < int(bound)/4 {
					t.Errorf("starts remain for %v turns, want at least those of %d messages", durations, bound/2)
				}
				if got, want := average(durations), float64(bound)/4; got < want*0.98 {
					t.Errorf("starts remain for %.2f turns on average, want %.2f", got, want)
				}
			})
		}
		for bound := int32(250); bound < 4000; bound += 130 {
			if limit > 0 && int(bound) > (limit-2)*100 {
				continue // as above
			}
			t.Run(fmt.Sprintf("max_bytes %d of %d messages stored", bound, limit), func(t *testing.T) {
				s := simulation{retention: limit, exchange: pairExchange, size: evenSize, firstNumber: 1000}
				c := s.run(t, 400, &parleyv1.ContextWindow{MaxBytes: bound, CacheStable: true})
				if slices.Min(c.durations) < c.smallest/2 {
					t.Errorf("starts remain for %v turns, want at least half of %d exchanges", c.durations, c.smallest)
				}
				if got, want := average(c.durations), float64(bound)/2/float64(c.exchange); got < want*0.98 {
					t.Errorf("starts remain for %.2f turns on average, want %.2f", got, want)
				}
			})
		}
	}
}

// TestStableStartLastsHalfTheBytes: in bytes, the distance between two starts is half the bound
// minus the exchange that contains the point of the grid, for any sizes.
func TestStableStartLastsHalfTheBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, sizes := range []struct {
		name string
		next func() int
	}{
		{"any size", func() int { return 50 + random.IntN(1500) }},
		{"very different sizes", func() int { return 50 << random.IntN(6) }},
		{"small and large sizes", func() int { return 50 + random.IntN(2)*1550 }},
		{"rarely a large size", func() int { return 100 + random.IntN(20)/19*1400 }},
	} {
		for _, limit := range []int{0, 500} {
			for _, bound := range []int32{13_000, 20_001} {
				t.Run(fmt.Sprintf("%s, max_bytes %d of %d messages stored", sizes.name, bound, limit), func(t *testing.T) {
					s := simulation{retention: limit, exchange: pairExchange, size: sizes.next}
					c := s.run(t, 700, &parleyv1.ContextWindow{MaxBytes: bound, CacheStable: true})
					if 4*c.exchange > int64(bound) {
						t.Fatalf("an exchange has %d bytes, too large for this test", c.exchange)
					}
					if want := int64(bound)/2 - c.exchange; slices.Min(c.steps) < want {
						t.Errorf("distances of starts = %d bytes, want at least %d", c.steps, want)
					}
				})
			}
		}
	}
}

// TestStableStartLastsQuarterOfTheWindow: a start remains for a quarter of the smallest window on
// average, whatever limits the window.
func TestStableStartLastsQuarterOfTheWindow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	anySize := func() int { return 50 + random.IntN(1500) }
	longTail := func() int { return 50 << random.IntN(6) }
	anyExchange := func() string {
		return [...]string{"u a", "u c1 r1 a", "u c1 r1 c2 r2 a", "u", "s u a"}[random.IntN(5)]
	}
	tests := []struct {
		name     string
		limit    int
		exchange func() string
		size     func() int
		window   *parleyv1.ContextWindow
	}{
		{"exchanges, less stored", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 16}},
		{"exchanges, a little less stored", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 12}},
		{"exchanges, odd, less stored", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 13}},
		{"messages, less stored", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxMessages: 28}},
		{"messages, much less stored", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxMessages: 1000}},
		{"messages, exchanges of any length", 200, anyExchange, evenSize, &parleyv1.ContextWindow{MaxMessages: 40}},
		{"exchanges of any length", 200, anyExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 10}},
		{"bytes", 0, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 20_000}},
		{"bytes, a small window", 0, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 8_000}},
		{"bytes, about what is stored", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 16_000}},
		{"bytes, a quarter less stored", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 21_000}},
		{"bytes, half stored", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 32_000}},
		{"bytes, less stored", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 1 << 20}},
		{"bytes, very different sizes", 0, pairExchange, longTail, &parleyv1.ContextWindow{MaxBytes: 20_000}},
		{"bytes and exchanges", 0, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 16_000, MaxExchanges: 10}},
		{"all bounds", 20, anyExchange, anySize, &parleyv1.ContextWindow{
			MaxBytes: 16_000, MaxExchanges: 10,
			MaxMessages: 20,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.window.CacheStable = true
			s := simulation{retention: test.limit, exchange: test.exchange, size: test.size}
			c := s.run(t, 600, test.window)
			t.Logf("starts remain for %.2f turns on average, smallest window %d exchanges", average(c.durations), c.smallest)
			if got, want := average(c.durations), float64(c.smallest)/4; got <= want {
				t.Errorf("starts remain for %.2f turns on average, want more than %.2f", got, want)
			}
		})
	}
}

// TestStableStartKeepsFittingHistory: a conversation that fits its window is not cut.
func TestStableStartKeepsFittingHistory(t *testing.T) {
	var messages []*parleyv1.Message
	for range 10 {
		messages = append(messages, history("u", "a")...)
		number(messages)
		for _, w := range []*parleyv1.ContextWindow{
			{MaxExchanges: 10, CacheStable: true},
			{MaxMessages: 20, CacheStable: true},
			{MaxBytes: 1 << 20, CacheStable: true},
		} {
			if got := Start(messages, offsetsOf(0, messages), w); got != 0 {
				t.Errorf("Start with %v of %d messages = %d, want 0", w, len(messages), got)
			}
		}
	}
}

// TestStableStartNeverMovesBack: a window never moves back if no tool result comes late.
func TestStableStartNeverMovesBack(t *testing.T) {
	exchange := rapid.SampledFrom([]string{"u a", "u a", "u c1 r1 a", "u", "u s a a"})
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		w.CacheStable = true
		limit := rapid.IntRange(5, 60).Draw(t, "keep")
		words := strings.Fields(strings.Join(rapid.SliceOfN(exchange, 1, 60).Draw(t, "exchanges"), " "))
		messages, first := history(words...), 0
		for _, m := range messages {
			m.Content = strings.Repeat("x", rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 200)).Draw(t, "size"))
		}
		offsets := offsetsOf(rapid.Int64Range(0, 5000).Draw(t, "dropped"), messages)
		for n := range messages {
			oldest := max(0, n-limit)
			got := oldest + Start(messages[oldest:n], offsets[oldest:n+1], w)
			if got < n && got < first {
				t.Fatalf("%d messages: Start = %d, less than %d before", n, got, first)
			}
			if got < n {
				first = got
			}
		}
	})
}
