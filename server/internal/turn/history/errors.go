package history

import (
	"errors"
	"fmt"
)

// ErrNothingToAnswer reports that no message of the history needs an answer.
var ErrNothingToAnswer = errors.New("the history has no message that needs an answer")

// NoOpenCallError reports that a tool result does not match an open call.
type NoOpenCallError struct {
	// CallID is the id in the result.
	CallID string
	// Answered reports whether the newest call with this id already has a result.
	Answered bool
	// Open contains the ids of the newest 64 open calls, oldest first.
	Open []string
}

// Error lists the open calls.
func (e *NoOpenCallError) Error() string {
	problem, open := "is not a call in the history", "no call waits for a result"
	if e.Answered {
		problem = "is a call that already has a result; use answer_pending to have it answered again"
	}
	if len(e.Open) > 0 {
		open = fmt.Sprintf("these calls wait for a result: %q", e.Open)
	}
	return fmt.Sprintf("%q %s; %s", e.CallID, problem, open)
}

// TooSmallError reports that a conversation cannot retain both tool results and the calls that they
// resolve.
type TooSmallError struct {
	// CallID is the id of a call that would be dropped.
	CallID string
	// MaxMessages is the message limit of the conversation.
	MaxMessages int32
	// MaxBytes is the byte limit of a conversation, 0 if only MaxMessages would be exceeded.
	MaxBytes int
}

// Error says which limit to raise.
func (e *TooSmallError) Error() string {
	if e.MaxBytes > 0 {
		return fmt.Sprintf("storing the tool results would drop their call %.64q: "+
			"a conversation retains %d bytes of messages; send shorter results", e.CallID, e.MaxBytes)
	}
	return fmt.Sprintf("storing the tool results would drop their call %.64q: the conversation retains %d messages; "+
		"raise its retention.max_messages with UpdateConversation", e.CallID, e.MaxMessages)
}
