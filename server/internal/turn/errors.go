package turn

import (
	"errors"
	"fmt"
	"strings"
)

// What Chat may answer, beside the errors of the store.
var (
	// ErrShuttingDown: the server takes no more turns.
	ErrShuttingDown = errors.New("the server is shutting down")
	// ErrTooManyTurns: as many turns run as may.
	ErrTooManyTurns = errors.New("too many turns are running")
	// ErrQueueFull: as many turns wait for the conversation as may.
	ErrQueueFull = errors.New("too many turns wait for the conversation")
	// ErrNothingToAnswer: the history does not end with anything that waits for an answer.
	ErrNothingToAnswer = errors.New("the history ends with nothing that waits for an answer")
	// ErrConversationGone: the conversation was deleted before its turn had ended.
	ErrConversationGone = errors.New("the conversation was deleted before the turn had ended")
)

// UnknownAgentError says that a request names an agent that there is not.
type UnknownAgentError struct {
	Agent string
	Known []string
}

// Error lists the agents there are.
func (e *UnknownAgentError) Error() string {
	return fmt.Sprintf("unknown agent %q; this server has: %s", e.Agent, strings.Join(e.Known, ", "))
}

// AgentNotConfiguredError says that the routing lease or the conversation names an agent
// that this server lacks.
type AgentNotConfiguredError struct {
	Agent string
	Known []string
}

// Error says what to do about it.
func (e *AgentNotConfiguredError) Error() string {
	return fmt.Sprintf("the conversation is routed to agent %q, which this server does not have; "+
		"name one of these in the request, or route it elsewhere: %s", e.Agent, strings.Join(e.Known, ", "))
}

// NotFoundError says that a conversation has no turn of that id, or no longer.
type NotFoundError struct {
	// TurnID is empty where any turn was asked for.
	TurnID string
}

// Error says which.
func (e *NotFoundError) Error() string {
	if e.TurnID == "" {
		return "the conversation has no turn"
	}
	return fmt.Sprintf("turn %q is not, or no longer, among the newest of the conversation", e.TurnID)
}

// EventsGoneError says that a reader asks for events that cannot be read.
type EventsGoneError struct {
	// After is the index that the reader named.
	After int32
	// Oldest index from which the turn can be read on; 0 when the turn itself is no longer
	// kept.
	Oldest int32
	// Last index that there is so far.
	Last int32
}

// Error says where to go on.
func (e *EventsGoneError) Error() string {
	switch {
	case e.Oldest == 0:
		return "the turn is no longer kept; its answer may be in the history"
	case e.After > e.Last:
		return fmt.Sprintf("after_index %d: the newest event is %d; the whole turn is behind 0", e.After, e.Last)
	}
	return fmt.Sprintf("after_index %d: the events behind it are no longer kept one by one; the whole turn is behind 0, its texts merged", e.After)
}

// NoOpenCallError says that a tool result answers no open call.
type NoOpenCallError struct {
	// CallID is the one that the result names.
	CallID string
	// Answered: the newest call of that id has its result.
	Answered bool
	// Open are the ids of the open calls, the newest 64, oldest first.
	Open []string
}

// Error lists the calls there are.
func (e *NoOpenCallError) Error() string {
	is, others := "is no call of the history", "none waits for a result"
	if e.Answered {
		is = "is a call that has its result; answer_pending has that answered again if need be"
	}
	if len(e.Open) > 0 {
		others = fmt.Sprintf("these wait for a result: %q", e.Open)
	}
	return fmt.Sprintf("%q %s; %s", e.CallID, is, others)
}

// NoRoomError says that a conversation cannot keep tool results beside the calls that they
// answer.
type NoRoomError struct {
	// CallID is of a call that would be dropped.
	CallID string
	// MaxMessages is how many messages the conversation keeps.
	MaxMessages int32
	// MaxBytes is how many bytes of messages any conversation keeps, where they are too many
	// for that; else 0.
	MaxBytes int
}

// Error says what to do about it.
func (e *NoRoomError) Error() string {
	if e.MaxBytes > 0 {
		return fmt.Sprintf("to store these would drop call %.64q, which they answer: a conversation keeps %d bytes of messages; shorten them", e.CallID, e.MaxBytes)
	}
	return fmt.Sprintf("to store these would drop call %.64q, which they answer: the conversation keeps max_messages, which is %d; "+
		"raise its retention.max_messages with UpdateConversation", e.CallID, e.MaxMessages)
}
