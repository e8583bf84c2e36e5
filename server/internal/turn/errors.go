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
	// ErrConversationGone: the conversation was deleted while its turn ran.
	ErrConversationGone = errors.New("the conversation was deleted during the turn")
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

// EventsGoneError says that a reader asks for events that are no longer kept.
type EventsGoneError struct {
	// Oldest index that can still be read; 0 when the turn itself is no longer kept.
	Oldest int32
}

// Error says where to go on.
func (e *EventsGoneError) Error() string {
	if e.Oldest == 0 {
		return "the turn is no longer kept; its answer may be in the history"
	}
	return fmt.Sprintf("the events before %d are no longer kept; the answer will be in the history", e.Oldest)
}

// UnsupportedError says that this version does not do what a request asks for.
type UnsupportedError struct{ What string }

// Error names it.
func (e *UnsupportedError) Error() string { return e.What + " is not supported by this version" }
