package window

import (
	"math/bits"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// onGrid is the rank of a start that lies on the grid of its bound, above all others.
const onGrid = 64

// grid says which starts of a window stay for long.
type stableStart struct {
	messages []*parleyv1.Message
	offsets  []int64
	bounds   *parleyv1.ContextWindow
}

// steady chooses, out of the starts found, one that stays for many turns, so that a
// provider's prompt cache can hit: a window that drops its oldest exchange every turn has
// a new prefix every turn.
//
// Nothing is remembered between calls. Every exchange has a rank that never changes, and
// the start of the highest rank wins, the older one of equals, among those that leave
// enough of the largest window. As the conversation grows, that range of starts only moves
// forward, so a start once chosen stays until it falls out at the old end or a higher rank
// comes in at the new one. The kept history bounds the range as the window does; it may
// lose its oldest message every turn.
//
// What this gives, with n exchanges in the largest window:
//
//   - Under max_exchanges alone each start stays for exactly half the bound, rounded up,
//     in turns: such a range always holds one point of the grid.
//   - Under max_messages alone the same holds in messages, give or take the exchange that
//     a point falls into, as long as exchanges are about equally long.
//   - Under max_bytes alone the same holds in bytes, give or take that exchange and
//     whatever the sizes, as long as the largest window fills three quarters of the bound.
//   - Where the store keeps less than a bound allows, and under several bounds at once, a
//     start stays for more than n/4 turns on average, with n the smallest met: a range of
//     more than n/2 holds a multiple of a power of two that is larger than n/4, hence no
//     other is ever chosen. Tests find no less where points of a grid come in between, and
//     where half the bytes are not half the exchanges.
//
// A tool result that arrives after the next user message can move the start out of turn.
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

// enough reports whether a window from s on will do in place of the largest: it has half
// the exchanges at least. Under max_bytes alone it has half the bytes or a quarter of the
// bound. A largest window that fills three quarters thus leaves half the bound to choose
// from, which always holds a point of the grid, so that the window chosen lacks no more.
func (g *stableStart) isLargeEnough(s, largest candidate) bool {
	if !g.usesBytes() {
		return 2*s.exchanges >= largest.exchanges
	}
	from, end := g.offsets[s.index], g.offsets[len(g.messages)]
	lacks, left := from-g.offsets[largest.index], end-from
	return left >= lacks || 4*left >= int64(g.bounds.GetMaxBytes())
}

// rank says how well the window may start at one message, when the next start is at
// another. The grid is the multiples of half the bound: a start with a point of it in its
// exchange ranks highest, so that the step is as long as can be. Otherwise the rank is how
// round the number of exchanges left out is, in trailing zero bits, for want of a step
// that fits what is not known in advance.
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

// inBytes reports whether bytes are what the grid is reckoned in.
func (g *stableStart) usesBytes() bool {
	return g.offsets != nil && g.bounds.GetMaxExchanges() == 0 && g.bounds.GetMaxMessages() == 0
}

// half is half a bound, rounded up.
func half(bound int32) int64 { return (int64(bound) + 1) / 2 }

// crosses reports whether a multiple of step is at from or between it and to.
func crosses(from, to, step int64) bool {
	return (to-1)/step*step >= from
}
