package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"pgregory.net/rapid"
)

// simulation is a conversation that grows by one exchange a turn.
type simulation struct {
	retention   int           // messages kept at most; 0 keeps all
	exchange    func() string // words of the next exchange
	size        func() int    // of a message's content
	firstNumber int32         // ahead of the first sequence and exchange; many make numbers of one length
}

// course is how a window moved in a simulation.
type movement struct {
	stays    []int   // for how many turns each start stayed, the first and the last left out
	steps    []int64 // in bytes from each of these starts to the next
	smallest int     // exchanges in the smallest of the largest windows that were cut
	exchange int64   // bytes of the largest exchange
}

// run lets the conversation grow for some turns.
func (s simulation) run(t *testing.T, turns int, w *parleyv1.ContextWindow) *movement {
	t.Helper()
	full := &parleyv1.ContextWindow{MaxMessages: w.MaxMessages, MaxExchanges: w.MaxExchanges, MaxBytes: w.MaxBytes}
	c := &movement{}
	var all []*parleyv1.Message
	offsets := []int64{0}
	current, stay, moved := 0, 0, false
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

		kept := all[oldest:]
		first := oldest + Start(kept, offsets[oldest:], w)
		largest := all[oldest+Start(kept, offsets[oldest:], full):]
		switch lack := missingPart(all[first:], largest, offsets, w); {
		case first == len(all):
			t.Fatalf("turn %d: empty window", turn)
		case lack != "":
			t.Fatalf("turn %d: %s, want about half", turn, lack)
		case first < current:
			t.Fatalf("turn %d: the window starts at %d, after %d before", turn, first, current)
		case first == current || turn == 0:
			current, stay = first, stay+1
		default:
			if moved {
				c.stays, c.steps = append(c.stays, stay), append(c.steps, offsets[first]-offsets[current])
			}
			current, stay, moved = first, 1, true
		}
		if n := exchanges(largest); moved && (c.smallest == 0 || n < c.smallest) {
			c.smallest = n
		}
	}
	if len(c.stays) < 20 {
		t.Fatalf("the window moved %d times in %d turns, too few to judge", len(c.stays), turns)
	}
	return c
}

func pairExchange() string { return "u a" }

func evenSize() int { return 100 }

func average(stays []int) float64 {
	sum := 0
	for _, stay := range stays {
		sum += stay
	}
	return float64(sum) / float64(len(stays))
}

// While the bound is what cuts, a start stays for half of it: exactly so in exchanges, to
// the exchange in messages and bytes.
func TestStableStartLastsHalfTheBound(t *testing.T) {
	for _, keep := range []int{0, 20, 21} {
		for _, bound := range []int32{1, 2, 3, 4, 5, 6, 8, 9, 10, 16} {
			if 2*int(bound) > keep && keep > 0 {
				continue // less is kept than the bound allows: the next test
			}
			t.Run(fmt.Sprintf("max_exchanges %d of %d kept", bound, keep), func(t *testing.T) {
				s := simulation{retention: keep, exchange: pairExchange, size: evenSize}
				stays := s.run(t, 500, &parleyv1.ContextWindow{MaxExchanges: bound, CacheStable: true}).stays
				want := int(bound+1) / 2
				if slices.Min(stays) != want || slices.Max(stays) != want {
					t.Errorf("starts stay for %v turns, want %d each", stays, want)
				}
			})
		}
		for _, bound := range []int32{2, 4, 6, 8, 10, 12, 14, 16, 20} {
			t.Run(fmt.Sprintf("max_messages %d of %d kept", bound, keep), func(t *testing.T) {
				s := simulation{retention: keep, exchange: pairExchange, size: evenSize}
				stays := s.run(t, 500, &parleyv1.ContextWindow{MaxMessages: bound, CacheStable: true}).stays
				if slices.Min(stays) < int(bound)/4 {
					t.Errorf("starts stay for %v turns, want %d messages' at least", stays, bound/2)
				}
				if got, want := average(stays), float64(bound)/4; got < want*0.98 {
					t.Errorf("starts stay for %.2f turns on average, want %.2f", got, want)
				}
			})
		}
		for bound := int32(250); bound < 4000; bound += 130 {
			if keep > 0 && int(bound) > (keep-2)*100 {
				continue // as above
			}
			t.Run(fmt.Sprintf("max_bytes %d of %d messages kept", bound, keep), func(t *testing.T) {
				s := simulation{retention: keep, exchange: pairExchange, size: evenSize, firstNumber: 1000}
				c := s.run(t, 400, &parleyv1.ContextWindow{MaxBytes: bound, CacheStable: true})
				if slices.Min(c.stays) < c.smallest/2 {
					t.Errorf("starts stay for %v turns, want half of %d exchanges at least", c.stays, c.smallest)
				}
				if got, want := average(c.stays), float64(bound)/2/float64(c.exchange); got < want*0.98 {
					t.Errorf("starts stay for %.2f turns on average, want %.2f", got, want)
				}
			})
		}
	}
}

// Bytes have a grid whatever the sizes: from one start to the next it is half the bound,
// less the exchange that a point falls into.
func TestStableStartLastsHalfTheBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, sizes := range []struct {
		name string
		next func() int
	}{
		{"any size", func() int { return 50 + random.IntN(1500) }},
		{"sizes far apart", func() int { return 50 << random.IntN(6) }},
		{"small ones and large ones", func() int { return 50 + random.IntN(2)*1550 }},
		{"now and then a large one", func() int { return 100 + random.IntN(20)/19*1400 }},
	} {
		for _, keep := range []int{0, 500} {
			for _, bound := range []int32{13_000, 20_001} {
				t.Run(fmt.Sprintf("%s, max_bytes %d of %d messages kept", sizes.name, bound, keep), func(t *testing.T) {
					s := simulation{retention: keep, exchange: pairExchange, size: sizes.next}
					c := s.run(t, 700, &parleyv1.ContextWindow{MaxBytes: bound, CacheStable: true})
					if 4*c.exchange > int64(bound) {
						t.Fatalf("an exchange has %d bytes, too many for this law", c.exchange)
					}
					if want := int64(bound)/2 - c.exchange; slices.Min(c.steps) < want {
						t.Errorf("from one start to the next it is %d bytes, want %d at least", c.steps, want)
					}
				})
			}
		}
	}
}

// Whatever cuts, bytes or the store, a start stays for a quarter of the smallest window on
// average.
func TestStableStartLastsQuarterOfTheWindow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	anySize := func() int { return 50 + random.IntN(1500) }
	longTail := func() int { return 50 << random.IntN(6) }
	anyExchange := func() string {
		return [...]string{"u a", "u c1 r1 a", "u c1 r1 c2 r2 a", "u", "s u a"}[random.IntN(5)]
	}
	tests := []struct {
		name     string
		keep     int
		exchange func() string
		size     func() int
		window   *parleyv1.ContextWindow
	}{
		{"exchanges, less kept", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 16}},
		{"exchanges, a little less kept", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 12}},
		{"exchanges, odd, less kept", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 13}},
		{"messages, less kept", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxMessages: 28}},
		{"messages, much less kept", 20, pairExchange, evenSize, &parleyv1.ContextWindow{MaxMessages: 1000}},
		{"messages, exchanges of any length", 200, anyExchange, evenSize, &parleyv1.ContextWindow{MaxMessages: 40}},
		{"exchanges of any length", 200, anyExchange, evenSize, &parleyv1.ContextWindow{MaxExchanges: 10}},
		{"bytes", 0, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 20_000}},
		{"bytes, a small window", 0, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 8_000}},
		{"bytes, about what is kept", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 16_000}},
		{"bytes, a quarter less kept", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 21_000}},
		{"bytes, half kept", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 32_000}},
		{"bytes, less kept", 20, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 1 << 20}},
		{"bytes, sizes far apart", 0, pairExchange, longTail, &parleyv1.ContextWindow{MaxBytes: 20_000}},
		{"bytes and exchanges", 0, pairExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 16_000, MaxExchanges: 10}},
		{"all bounds", 20, anyExchange, anySize, &parleyv1.ContextWindow{MaxBytes: 16_000, MaxExchanges: 10, MaxMessages: 20}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.window.CacheStable = true
			s := simulation{retention: test.keep, exchange: test.exchange, size: test.size}
			c := s.run(t, 600, test.window)
			t.Logf("starts stay for %.2f turns on average, windows of %d exchanges and more", average(c.stays), c.smallest)
			if got, want := average(c.stays), float64(c.smallest)/4; got <= want {
				t.Errorf("starts stay for %.2f turns on average, want more than %.2f", got, want)
			}
		})
	}
}

// A conversation that fits its window is given whole.
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
				t.Errorf("%v: %d messages start at %d, want 0", w, len(messages), got)
			}
		}
	}
}

// As long as no result comes late, a window never goes back.
func TestStableStartNeverMovesBack(t *testing.T) {
	exchange := rapid.SampledFrom([]string{"u a", "u a", "u c1 r1 a", "u", "u s a a"})
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		w.CacheStable = true
		keep := rapid.IntRange(5, 60).Draw(t, "keep")
		words := strings.Fields(strings.Join(rapid.SliceOfN(exchange, 1, 60).Draw(t, "exchanges"), " "))
		messages, first := history(words...), 0
		for _, m := range messages {
			m.Content = strings.Repeat("x", rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 200)).Draw(t, "size"))
		}
		offsets := offsetsOf(rapid.Int64Range(0, 5000).Draw(t, "dropped"), messages)
		for n := range messages {
			oldest := max(0, n-keep)
			got := oldest + Start(messages[oldest:n], offsets[oldest:n+1], w)
			if got < n && got < first {
				t.Fatalf("after %d messages the window starts at %d, after %d before", n, got, first)
			}
			if got < n {
				first = got
			}
		}
	})
}
