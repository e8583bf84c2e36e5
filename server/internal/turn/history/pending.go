package history

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Pending returns the message of a history that needs an answer, or ErrNothingToAnswer. It
// is the newest message of a user or a tool without a complete answer after it. A tool result that
// an agent stored at the end of a complete turn needs no answer.
//
// The answer of a turn is incomplete if its last message of an agent is INCOMPLETE. Then the
// earlier messages of the same turn do not count as an answer either, even those of another agent,
// back to the newest tool result.
func Pending(history []*parleyv1.Message) (*parleyv1.Message, error) {
	incompleteTurn := "" // the id of the turn whose answer is incomplete
	for i, m := range slices.Backward(history) {
		turnID := m.GetTurnId()
		switch m.GetRole() {
		case parleyv1.Role_ROLE_USER:
			return m, nil
		case parleyv1.Role_ROLE_TOOL:
			if turnID == "" || turnID == incompleteTurn || endsIncomplete(history[:i], turnID) {
				return m, nil
			}
			return nil, ErrNothingToAnswer
		case parleyv1.Role_ROLE_ASSISTANT:
			if incomplete(m) {
				incompleteTurn = turnID
			} else if incompleteTurn == "" || turnID != incompleteTurn {
				return nil, ErrNothingToAnswer
			}
		default:
		}
	}
	return nil, ErrNothingToAnswer
}

// endsIncomplete reports whether the turn's answer is incomplete. The last message of the turn is a
// tool result, and messages are those before it.
func endsIncomplete(messages []*parleyv1.Message, turnID string) bool {
	for _, m := range slices.Backward(messages) {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			return incomplete(m) && m.GetTurnId() == turnID
		}
	}
	return false
}

func incomplete(m *parleyv1.Message) bool {
	return m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
}
