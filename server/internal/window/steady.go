package window

import (
	"math/bits"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// onGrid is the rank of a start that lies on the grid of its bound, above all others.
const onGrid = 64

// steady chooses, out of the starts found, one that stays for many turns, so that a
// provider's prompt cache can hit: a window that drops its oldest exchange every turn has
// a new prefix every turn.
//
// Nothing is remembered between calls. Every exchange has a rank that never changes, and
// the start of the highest rank wins, the older one of equals, among those that leave at
// least half the exchanges of the largest window. As the conversation grows, that range of
// starts only moves forward, so a start once chosen stays until it falls out at the old
// end or a higher rank comes in at the new one. The kept history bounds the range as the
// window does; it may lose its oldest message every turn.
//
// What this gives, with n exchanges in the largest window:
//
//   - Under max_exchanges alone each start stays for exactly half the bound, rounded up,
//     in turns: such a range always holds one point of the grid.
//   - Under max_messages alone the same holds in messages, give or take the exchange that
//     a point falls into, as long as exchanges are about equally long.
//   - Under max_bytes a start stays for more than n/4 turns on average, with n the smallest
//     met: a range of more than n/2 holds a multiple of a power of two that is larger than
//     n/4, hence no other is ever chosen. Tests find no less where the store keeps less
//     than a bound allows, and under several bounds at once.
//
// A tool result that arrives after the next user message can move the start out of turn.
func steady(messages []*parleyv1.Message, found []start, w *parleyv1.ContextWindow) int {
	largest := found[len(found)-1].exchanges
	best, highest := 0, -1
	for i, s := range slices.Backward(found) {
		if 2*s.exchanges < largest {
			break
		}
		next := len(messages)
		if i > 0 {
			next = found[i-1].index
		}
		if r := rank(messages[s.index], next-s.index, w); r > highest {
			best, highest = s.index, r
		}
	}
	return best
}

// rank says how well the window may start at a user message, followed by the rest of
// length messages up to the next start. Under a bound in exchanges or messages every start
// that has a multiple of half the bound left out before it ranks highest: the step is then
// as long as can be. Otherwise the rank is how round the number of exchanges left out is,
// in trailing zero bits, for want of a step that fits sizes not known in advance.
func rank(m *parleyv1.Message, length int, w *parleyv1.ContextWindow) int {
	exchanges, sequence := int(m.GetExchange())-1, int(m.GetSequence())-1
	switch {
	case w.GetMaxExchanges() > 0 && exchanges%half(w.GetMaxExchanges()) == 0:
		return onGrid
	case w.GetMaxExchanges() == 0 && w.GetMaxMessages() > 0 && crosses(sequence, length, half(w.GetMaxMessages())):
		return onGrid
	default:
		return bits.TrailingZeros32(uint32(exchanges))
	}
}

// half is half a bound, rounded up.
func half(bound int32) int { return (int(bound) + 1) / 2 }

// crosses reports whether one of the length numbers from first on is a multiple of step.
func crosses(first, length, step int) bool {
	return (first+length-1)/step*step >= first
}
