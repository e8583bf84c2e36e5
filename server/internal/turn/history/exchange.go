package history

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ExchangeStart returns the index at which the exchange of the input starts, so that the
// exchange includes every call that the input has results of. If the input starts a new exchange,
// the index is len(history). Tool results directly before the input that do not come from a turn
// belong to the input.
func ExchangeStart(history []*parleyv1.Message, input *parleyv1.Message) int {
	first := len(history)
	for first > 0 && history[first-1].GetRole() == parleyv1.Role_ROLE_TOOL && history[first-1].GetTurnId() == "" {
		first--
	}
	if input.GetRole() != parleyv1.Role_ROLE_TOOL && first == len(history) {
		return first
	}
	_, calls := Track(append(slices.Clip(history), input))
	start := lastExchangeStart(history[:first], calls)
	for i := len(history); i >= start; i-- {
		if call := calls[i]; call >= 0 && call < start {
			start = lastExchangeStart(history[:call+1], calls)
		}
	}
	return start
}

// lastExchangeStart returns the index at which the last exchange of messages starts: its user
// message. If the user message is no longer stored, it returns the index of the oldest message that
// is not the result of a call that is no longer stored, or len(messages). calls are the indexes
// from Track.
func lastExchangeStart(messages []*parleyv1.Message, calls []int) int {
	for i, m := range slices.Backward(messages) {
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			return i
		}
	}
	for i, m := range messages {
		if m.GetRole() != parleyv1.Role_ROLE_TOOL || calls[i] >= 0 {
			return i
		}
	}
	return len(messages)
}
