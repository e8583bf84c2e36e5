// Package window selects the messages of a conversation that an agent receives. A window is always
// a suffix of the stored history. The package is pure.
//
// The laws of a window, each checked by a test:
//
//   - It starts at a user message, even if it is unbounded.
//   - It contains no tool result without its call.
//   - It fits every bound that is set, and no longer window that obeys the laws does.
//   - Whether a message may be its first depends only on the messages after it, never on how much
//     older history is stored.
//   - With cache_stable it may be shorter than the third law says, by about half a window at most.
//     In return, its first message stays the same for many turns; see chooseStart.
//
// Start at [Start].
package window

import (
	"slices"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Start returns the index of the first message of the window: the agent receives messages[start:].
// messages is the stored history, oldest first, as the store returns it. Start does not change it.
// Without a bound, or if w is nil, the window starts at the oldest message that may be its first.
// The result len(messages) is an empty window: there is no user message, or the newest exchange
// exceeds a bound.
//
// offsets has the number of bytes of all earlier messages for each message, stored or dropped, and
// at last the total: see store.Snapshot.Offsets. It is used with cache_stable and max_bytes alone.
// If nil, the offsets are unknown, and the first message changes more often. Offsets count the
// reasoning of stored messages, even if messages lack it: a window with cache_stable may then be
// shorter by its size.
func Start(messages []*parleyv1.Message, offsets []int64, w *parleyv1.ContextWindow) int {
	found := candidates(messages, w, startsExchange)
	switch {
	case len(found) == 0:
		return len(messages)
	case w.GetCacheStable() && bounded(w):
		g := stableStart{messages, offsets, w}
		return g.chooseStart(found)
	default:
		return found[len(found)-1].index
	}
}

// OfNewest returns the window to use with messages that are only the newest of a history, as many as have maxBytes.
// That limit moves on with each message. With cache_stable it is therefore a bound like those of w, which may be nil.
func OfNewest(w *parleyv1.ContextWindow, maxBytes int32) *parleyv1.ContextWindow {
	if !w.GetCacheStable() || w.GetMaxBytes() > 0 && w.GetMaxBytes() <= maxBytes {
		return w
	}
	bound := proto.CloneOf(w)
	bound.MaxBytes = maxBytes
	return bound
}

// StartWithin returns the index of the first of the newest messages that have at most maxBytes together. They contain
// no tool result without its call, but may begin within an exchange: it is for readers that must get something of an
// exchange that is larger than any window.
func StartWithin(messages []*parleyv1.Message, maxBytes int32) int {
	anywhere := func(*parleyv1.Message) bool { return true }
	found := candidates(messages, &parleyv1.ContextWindow{MaxBytes: maxBytes}, anywhere)
	if len(found) == 0 {
		return len(messages)
	}
	return found[len(found)-1].index
}

func startsExchange(m *parleyv1.Message) bool { return m.GetRole() == parleyv1.Role_ROLE_USER }

// RemoveReasoning removes the reasoning from the messages, which agents do not get. Call it before
// Start, so that the reasoning does not count.
func RemoveReasoning(messages []*parleyv1.Message) {
	for _, m := range messages {
		m.Reasoning = ""
	}
}

// candidate is an index at which a window may start.
type candidate struct {
	index     int
	exchanges int // number of exchanges in the window
}

// candidates returns all indexes of messages for which mayStart reports true and at which a window that obeys the other
// laws and fits w may start, newest first.
//
// One pass from the newest message suffices, because a result belongs to the nearest earlier call
// with its id, which is the first one that the pass meets. If the call of a result is not in the
// history, because it was dropped with older messages, no window contains the result: a model
// refuses a result without a call.
func candidates(
	messages []*parleyv1.Message, w *parleyv1.ContextWindow, mayStart func(*parleyv1.Message) bool,
) []candidate {
	var (
		found []candidate
		size  windowSize
		unmet = map[string]bool{} // ids of results whose call has not been found yet
	)
	for i, m := range slices.Backward(messages) {
		size.add(m, w)
		if !size.fits(w) {
			break
		}
		for _, call := range m.GetToolCalls() {
			delete(unmet, call.GetId())
		}
		if m.GetRole() == parleyv1.Role_ROLE_TOOL {
			unmet[m.GetToolResult().GetCallId()] = true
		}
		if len(unmet) == 0 && mayStart(m) {
			found = append(found, candidate{index: i, exchanges: size.exchanges})
		}
	}
	return found
}

// windowSize is the size of a window in the units of its bounds.
type windowSize struct {
	messages, exchanges, bytes int
}

func (u *windowSize) add(m *parleyv1.Message, w *parleyv1.ContextWindow) {
	u.messages++
	if m.GetRole() == parleyv1.Role_ROLE_USER {
		u.exchanges++
	}
	if w.GetMaxBytes() > 0 { // Calculate sizes only if needed, since they are expensive.
		u.bytes += proto.Size(m)
	}
}

func (u *windowSize) fits(w *parleyv1.ContextWindow) bool {
	return within(u.messages, w.GetMaxMessages()) &&
		within(u.exchanges, w.GetMaxExchanges()) &&
		within(u.bytes, w.GetMaxBytes())
}

// within reports whether n does not exceed a bound; a bound of 0 is no bound.
func within(n int, bound int32) bool {
	return bound <= 0 || n <= int(bound)
}

func bounded(w *parleyv1.ContextWindow) bool {
	return w.GetMaxMessages() > 0 || w.GetMaxExchanges() > 0 || w.GetMaxBytes() > 0
}
