// Package agent holds what every agent is to the rest of the server: the [Agent]
// interface, the [Error] by which one says why it failed, and the [Set] of agents
// that the configuration names. Begin with Agent; each kind of agent has a package
// of its own below this one.
//
// What several kinds have in common is here as well: the history as models take it
// ([Answered], [Text]), data within text ([Blocks]), how many answer at once ([Limit]),
// the HTTP API that a model is behind ([Provider]), and hiding secrets ([Redact]).
package agent

import (
	"context"
	"iter"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Agent answers conversations. All methods may be called by many goroutines at once.
type Agent interface {
	// Respond answers what the messages end with. It yields pieces until the answer is
	// whole or it fails, changes nothing in the request, and returns within 5 s of ctx's
	// end.
	//
	// The sequence may be ranged over once. An error comes last and beside a nil piece:
	// an *Error when the agent failed, the cause of ctx's end when that came first. Text
	// is valid UTF-8. A consumer that stops early ends the work behind the answer too.
	Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error]

	// Close gives back what the agent holds between answers. No Respond may be under way
	// or follow.
	Close() error
}

// Error says why an agent failed. It becomes a Turn.error with reason AGENT_FAILED;
// time and size limits have reasons of their own, which agents need not know.
type Error struct {
	// Message tells a person what went wrong, without the agent's name. It is shown to
	// users and logged: valid UTF-8, a few KiB at most, no secrets of the server and
	// no address of the agent.
	Message string
	// Detail is for the log only: addresses and network errors. It has the same limits as Message
	// and may be empty.
	Detail string
	// Retryable says that the same request may well succeed when it is made again.
	Retryable bool
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }
