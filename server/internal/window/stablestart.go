package window

import (
	"math/bits"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// onGrid is the rank of a candidate on the grid, higher than all others.
const onGrid = 64

// stableStart selects candidates that remain the start of the window for many turns.
type stableStart struct {
	messages []*parleyv1.Message
	offsets  []int64
	bounds   *parleyv1.ContextWindow
}

// chooseStart returns the candidate that remains the start for many turns, so that the prompt cache
// of a model provider is used. A window that drops its oldest exchange in every turn has another
// prefix in every turn.
//
// chooseStart has no state. Each exchange has a rank that never changes. Among the candidates that
// leave enough of the largest window, the one with the highest rank wins, and the older of equal
// ones. As the conversation grows, the range of candidates only moves forward. A start therefore
// remains until it leaves the range or a candidate with a higher rank enters it. The stored history
// limits the range as the window does; it may lose its oldest message in every turn.
//
// Results, with n exchanges in the largest window:
//
//   - Under max_exchanges alone each start remains for exactly half the bound in turns, rounded up:
//     such a range always contains one point of the grid.
//   - Under max_messages alone each start remains for half the bound in messages, plus or minus the
//     exchange that contains the point of the grid, if exchanges are about equally long.
//   - Under max_bytes alone each start remains for half the bound in bytes, plus or minus that
//     exchange and for any sizes, if the largest window fills three quarters of the bound.
//   - If the store retains less than a bound allows, and under several bounds, a start remains for
//     more than n/4 turns on average, where n is the smallest value. A range of more than n/2
//     contains a multiple of a power of two that is larger than n/4, so no other candidate is
//     chosen. The tests find no smaller values when points of a grid are in the range and when half
//     the bytes are not half the exchanges.
//
// A tool result that arrives after the next user message can move the start early.
func (g *stableStart) chooseStart(found []candidate) int {
	largest := found[len(found)-1]
	best, highest := 0, -1
	for i, s := range slices.Backward(found) {
		if !g.isLargeEnough(s, largest) {
			break
		}
		next := len(g.messages)
		if i > 0 {
			next = found[i-1].index
		}
		if r := g.rank(s.index, next); r > highest {
			best, highest = s.index, r
		}
	}
	return best
}

// isLargeEnough reports whether a window that starts at s is large enough compared to the largest:
// it has at least half the exchanges. Under max_bytes alone it has at least half the bytes or a
// quarter of the bound. If the largest window fills three quarters of the bound, the range is half
// the bound. It then always contains a point of the grid, so that the chosen window lacks no more
// than half the bound.
func (g *stableStart) isLargeEnough(s, largest candidate) bool {
	if !g.usesBytes() {
		return 2*s.exchanges >= largest.exchanges
	}
	from, end := g.offsets[s.index], g.offsets[len(g.messages)]
	lacks, left := from-g.offsets[largest.index], end-from
	return left >= lacks || 4*left >= int64(g.bounds.GetMaxBytes())
}

// rank returns how suitable a candidate is, given the next candidate. The grid consists of the
// multiples of half the bound. A candidate whose exchange contains a point of the grid ranks
// highest, because the steps of the grid are as long as possible. Otherwise the rank is the number
// of trailing zero bits of the number of exchanges before the candidate, since a suitable step is
// not known in advance.
func (g *stableStart) rank(first, next int) int {
	m, on := g.messages[first], false
	exchanges, sequence := int64(m.GetExchange())-1, int64(m.GetSequence())-1
	switch w := g.bounds; {
	case w.GetMaxExchanges() > 0:
		on = crosses(exchanges, exchanges+1, half(w.GetMaxExchanges()))
	case w.GetMaxMessages() > 0:
		on = crosses(sequence, sequence+int64(next-first), half(w.GetMaxMessages()))
	case g.usesBytes():
		on = crosses(g.offsets[first], g.offsets[next], half(w.GetMaxBytes()))
	}
	if on {
		return onGrid
	}
	return bits.TrailingZeros32(uint32(exchanges))
}

// usesBytes reports whether the grid is measured in bytes.
func (g *stableStart) usesBytes() bool {
	return g.offsets != nil && g.bounds.GetMaxExchanges() == 0 && g.bounds.GetMaxMessages() == 0
}

// half returns half a bound, rounded up.
func half(bound int32) int64 { return (int64(bound) + 1) / 2 }

// crosses reports whether there is a multiple of step in [from, to).
func crosses(from, to, step int64) bool {
	return (to-1)/step*step >= from
}
