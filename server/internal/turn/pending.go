package turn

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// pendingIn returns the message that waits for an answer: the newest of a user or of a tool,
// unless an answer follows it. The answer of a turn that did not complete is none: its last
// message is INCOMPLETE, and what it had said before, say by another agent, goes with it.
func pendingIn(frames store.Frames) (*parleyv1.Message, error) {
	messages, err := frames.Messages()
	if err != nil {
		return nil, err
	}
	failed := "" // The turn of an answer that is not whole.
	for _, m := range slices.Backward(messages) {
		switch m.GetRole() {
		case parleyv1.Role_ROLE_USER, parleyv1.Role_ROLE_TOOL:
			return m, nil
		case parleyv1.Role_ROLE_ASSISTANT:
			if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
				failed = m.GetTurnId()
			} else if failed == "" || m.GetTurnId() != failed {
				return nil, ErrNothingToAnswer
			}
		default:
		}
	}
	return nil, ErrNothingToAnswer
}
