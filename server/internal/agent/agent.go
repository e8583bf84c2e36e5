// Package agent defines the [Agent] interface, the [Error] that an agent returns, and the [Set] of
// configured agents. Each kind of agent is a package in a subdirectory.
//
// The package also contains what several kinds of agents use: message histories in the form that
// models accept ([Answered], [Text]), structured data in text ([Blocks]), a limit of concurrent
// answers ([Limit]), the HTTP API of a model provider ([Provider]), and removal of secrets from
// texts ([Redact]). Start at [Agent].
package agent

import (
	"context"
	"iter"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Agent answers conversations. All methods are safe for concurrent use.
type Agent interface {
	// Respond answers the last messages of the request. It yields pieces until the answer is
	// complete or fails, and returns within 5 s after ctx ends. It does not change the request.
	//
	// The sequence can be iterated once. An error is the last element, with a nil piece: an *Error
	// if the agent failed, or the cause of ctx if ctx ended first. Text is valid UTF-8. If the
	// consumer stops early, the work for the answer ends too.
	Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error]

	// Close releases the agent's connections and other resources. It must not be called before all calls
	// of Respond have returned, and Respond must not be called after it.
	Close() error
}

// Error describes why an agent failed. It becomes a Turn.error with the reason AGENT_FAILED. Time
// and size limits have their own reasons, which are set outside of agents.
type Error struct {
	// Message describes the failure for a person, without the agent's name. It is shown to users
	// and logged. It must be valid UTF-8, have at most a few KiB, and contain neither secrets of
	// the server nor the agent's address.
	Message string
	// Detail is for the log only, for example addresses and network errors. It has the same limits
	// as Message and may be empty.
	Detail string
	// Retryable means that the same request may succeed when it is repeated.
	Retryable bool
}

// Error returns Message.
func (e *Error) Error() string { return e.Message }
