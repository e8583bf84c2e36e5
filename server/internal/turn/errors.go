package turn

import (
	"errors"
	"fmt"
	"strings"

	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/server/internal/turn/history"
	"github.com/parleyhq/parley/store"
)

// Errors of Chat, in addition to those of the store.
var (
	// ErrShuttingDown reports that the server accepts no new turns.
	ErrShuttingDown = errors.New("the server is shutting down")
	// ErrTooManyTurns reports that the limit of running turns is reached.
	ErrTooManyTurns = errors.New("too many turns are running")
	// ErrQueueFull reports that the limit of waiting turns of the conversation is reached, or that of the memory of
	// all waiting requests.
	ErrQueueFull = errors.New("too many turns wait")
	// ErrNothingToAnswer reports that no message of the history needs an answer.
	ErrNothingToAnswer = history.ErrNothingToAnswer
	// ErrConversationDeleted reports that the conversation was deleted before its turn ended.
	ErrConversationDeleted = errors.New("the conversation was deleted before the turn ended")
)

// UnknownAgentError reports that a request names an agent that is not configured.
type UnknownAgentError struct {
	Agent string
	Known []string
}

// Error lists the configured agents.
func (e *UnknownAgentError) Error() string {
	return fmt.Sprintf("unknown agent %q; configured agents: %s", e.Agent, strings.Join(e.Known, ", "))
}

// AgentNotConfiguredError reports that the routing lease or the conversation names an agent that is
// not configured on this server.
type AgentNotConfiguredError struct {
	Agent string
	Known []string
}

// Error lists the configured agents.
func (e *AgentNotConfiguredError) Error() string {
	return fmt.Sprintf("the conversation is routed to agent %q, which is not configured on this server; "+
		"name another agent in the request or change the routing; configured agents: %s", e.Agent,
		strings.Join(e.Known, ", "))
}

// NotFoundError reports that a turn does not exist or is no longer kept.
type NotFoundError struct {
	// TurnID is empty if the request did not name a turn.
	TurnID string
}

// Error implements error.
func (e *NotFoundError) Error() string {
	if e.TurnID == "" {
		return "the conversation has no turn"
	}
	return fmt.Sprintf("turn %q does not exist; it was never started or is no longer kept", e.TurnID)
}

// ElsewhereError reports that a call is about a running turn that this server does not run. The server that runs the
// turn can answer the call. Nothing was written, and a stream with this error has had no event but queued ones.
type ElsewhereError struct {
	// TurnID of the running turn.
	TurnID string
}

// Error returns the text of the store.BusyError.
func (e *ElsewhereError) Error() string { return e.Unwrap().Error() }

// Unwrap returns a store.BusyError: for a caller that asks no other server, the conversation is busy.
func (e *ElsewhereError) Unwrap() error { return &store.BusyError{TurnID: e.TurnID} }

// EventsGoneError reports that the requested events cannot be read.
type EventsGoneError = eventlog.GoneError

// NoOpenCallError reports that a tool result does not match an open call.
type NoOpenCallError = history.NoOpenCallError

// HistoryTooSmallError reports that a conversation cannot retain both tool results and the calls that they
// resolve.
type HistoryTooSmallError = history.TooSmallError
