// Package window decides which messages of a conversation an agent is given: always a
// suffix of the kept history. It is pure; begin at Start.
//
// The laws of a window, each a test:
//
//   - it starts at a user message, even when it is unbounded;
//   - it holds no tool result without its call;
//   - it fits every bound that is set, and nothing longer that obeys the laws does;
//   - whether a message may be its first depends on the messages after it alone, never
//     on how much older history is still kept;
//   - with cache_stable it gives up the third law's second half, at most about half a
//     window of it, and in return keeps its first message for many turns; see steady.
package window

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"google.golang.org/protobuf/proto"
)

// Start returns where the window begins: an agent is given messages[start:]. Messages is
// the kept history, oldest first, as the store returns it; it is not changed. Without a
// bound, or with w nil, the window begins at the oldest message that may be its first.
// len(messages), an empty window, means that there is none: no user message, or a newest
// exchange larger than a bound.
//
// Offsets says for each message how many bytes of messages came before it, kept or not,
// and last how many there are in all: store.Snapshot.Offsets. It is used with cache_stable
// under max_bytes alone; nil is unknown, and a start does not stay as long.
func Start(messages []*parleyv1.Message, offsets []int64, w *parleyv1.ContextWindow) int {
	found := candidates(messages, w)
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

// start is a place where a window may begin.
type candidate struct {
	index     int
	exchanges int // in the window
}

// starts returns every place where a window that obeys the laws and fits w may begin,
// newest first.
//
// One walk from the newest message on is enough, because a result belongs to the nearest
// earlier call of its id: the first one met on the way back. A result whose call is not in
// the history at all never finds it, so that no window holds it: the call may have been
// dropped with older messages, and a model refuses a result that it did not ask for.
func candidates(messages []*parleyv1.Message, w *parleyv1.ContextWindow) []candidate {
	var (
		found []candidate
		size  windowSize
		unmet = map[string]bool{} // ids of results whose call has not come yet
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
		if m.GetRole() == parleyv1.Role_ROLE_USER && len(unmet) == 0 {
			found = append(found, candidate{index: i, exchanges: size.exchanges})
		}
	}
	return found
}

// usage is what a window holds, in the units of its bounds.
type windowSize struct {
	messages, exchanges, bytes int
}

func (u *windowSize) add(m *parleyv1.Message, w *parleyv1.ContextWindow) {
	u.messages++
	if m.GetRole() == parleyv1.Role_ROLE_USER {
		u.exchanges++
	}
	if w.GetMaxBytes() > 0 { // sizes are the one costly measure
		u.bytes += proto.Size(m)
	}
}

func (u *windowSize) fits(w *parleyv1.ContextWindow) bool {
	return within(u.messages, w.GetMaxMessages()) &&
		within(u.exchanges, w.GetMaxExchanges()) &&
		within(u.bytes, w.GetMaxBytes())
}

// within reports whether n keeps to a bound, of which 0 is none.
func within(n int, bound int32) bool {
	return bound <= 0 || n <= int(bound)
}

func bounded(w *parleyv1.ContextWindow) bool {
	return w.GetMaxMessages() > 0 || w.GetMaxExchanges() > 0 || w.GetMaxBytes() > 0
}
