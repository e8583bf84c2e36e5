package turn

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// pendingIn returns the message of a history that waits for an answer: the newest of a user
// or of a tool, unless an answer follows it, or it is the last word of one: agents have
// results of their own. The answer of a turn that did not complete is none: its last message
// by an agent is INCOMPLETE, and what it had said before, say by another agent, goes with it,
// up to the newest result that it had.
func pendingMessage(history []*parleyv1.Message) (*parleyv1.Message, error) {
	incompleteTurn := "" // The turn of an answer that is not whole.
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

// cutOff reports whether the answer of a turn is not whole whose last message, a result,
// follows these.
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
