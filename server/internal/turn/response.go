package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/store"
)

// saveInterval is the time between two saves of a partial answer. A crash may lose one second of an
// answer; this interval and the time of a commit stay below that.
const saveInterval = 500 * time.Millisecond

// Causes that cancel a running turn, in addition to ErrShuttingDown and ErrConversationDeleted.
var (
	errIdleTimeout  = errors.New("the agent sent nothing for idle_timeout")
	errTurnTimeout  = errors.New("the agent did not finish within turn_timeout")
	errCancelled    = errors.New("the turn was cancelled")
	errDisconnected = errors.New("the last reader disconnected")
	errInterrupted  = errors.New("a later request interrupts the turn")
	// errEndedElsewhere also ends the streams of the turn: their readers continue from the store.
	errEndedElsewhere = errors.New("another server has ended the turn")
)

// errDroppedFromQueue is the cause of a queued turn that does not start because its last reader
// left.
var errDroppedFromQueue = errors.New("the turn has no readers")

// respond calls the agent and returns why the answer ended, nil if it is complete.
func (x *execution) respond(request *parleyv1.RespondRequest) (err error) {
	ctx, span := tracing.BeginAgent(x.live.ctx, x.agent.Kind, x.agent.Name, x.live.conversation.id)
	ctx = agent.WithRecord(ctx, x.agentRecord)
	defer func() { span.End(faultOf(err)) }()
	defer func() {
		// A panic of an agent must not end the other turns.
		if fault := recover(); fault != nil {
			err = fmt.Errorf("agent panicked: %v\n%s", fault, debug.Stack())
		}
	}()
	if cause := context.Cause(x.live.ctx); cause != nil {
		return cause // Do not call the agent.
	}
	stop := x.startSaving()
	defer stop()
	late := time.AfterFunc(x.manager.o.TurnTimeout, func() { x.live.cancel(errTurnTimeout) })
	defer late.Stop()
	idle := time.AfterFunc(x.manager.o.IdleTimeout, func() { x.live.cancel(errIdleTimeout) })
	defer idle.Stop()
	called := time.Now()
	defer func() { x.end.Answer = time.Since(called) }()
	for piece, err := range x.agent.Agent.Respond(ctx, request) {
		idle.Reset(x.manager.o.IdleTimeout)
		if err == nil && x.end.FirstPiece == 0 {
			x.end.FirstPiece = time.Since(called)
		}
		if u := piece.GetUsage(); u != nil {
			span.SetUsage(u.GetInputTokens(), u.GetOutputTokens())
		}
		if err == nil {
			err = x.live.answer.Add(piece)
		}
		if err != nil {
			if cause := context.Cause(x.live.ctx); cause != nil {
				return cause
			}
			return err
		}
	}
	return context.Cause(x.live.ctx)
}

// faultOf returns the kind of failure of an agent for its span, "" if it has not failed.
func faultOf(err error) string {
	switch _, failed := errors.AsType[*agent.Error](err); {
	case err == nil:
		return ""
	case failed:
		return "AGENT_FAILED"
	case errors.Is(err, errIdleTimeout), errors.Is(err, errTurnTimeout):
		return "AGENT_TIMEOUT"
	case errors.Is(err, errCancelled), errors.Is(err, errDisconnected), errors.Is(err, errInterrupted),
		errors.Is(err, ErrConversationDeleted), errors.Is(err, ErrShuttingDown), errors.Is(err, errEndedElsewhere):
		return "" // Others ended the turn.
	}
	return "_OTHER"
}

// startSaving saves the partial answer every saveInterval until stop is called. When another server has changed the
// conversation, it checks at once whether the turn still runs. stop waits for the last save.
func (x *execution) startSaving() (stop func()) {
	waiter := x.manager.waiters.Add(x.live.conversation)
	saved, isChecked := 0, true
	stopSaving := runEvery(saveInterval, waiter.C, func(woken bool) {
		if woken || !isChecked {
			isChecked = x.checkRunning()
		}
		if !woken {
			saved = x.save(saved)
		}
	})
	return func() { stopSaving(); waiter.Remove() }
}

// keepAliveCheckInterval is how often a turn checks when its readers last received an event.
const keepAliveCheckInterval = 500 * time.Millisecond

// startKeepAlive adds a keep-alive event whenever readers have received no event for
// keepAliveInterval, until stop is called. It uses its own goroutine, since both the agent and the
// store may be slow.
func (x *execution) startKeepAlive() (stop func()) {
	lastIndex, lastTime := x.live.events.LastIndex(), time.Now()
	return runEvery(keepAliveCheckInterval, nil, func(bool) {
		switch n := x.live.events.LastIndex(); {
		case n != lastIndex:
			lastIndex, lastTime = n, time.Now()
		case time.Since(lastTime) >= keepAliveInterval:
			lastIndex, lastTime = x.live.events.AddKeepAlive(), time.Now()
		}
	})
}

// runEvery calls do at an interval, and with woken for each value of wake, in its own goroutine, until stop is called.
// stop returns when the goroutine has ended.
func runEvery(interval time.Duration, wake <-chan struct{}, do func(woken bool)) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				do(false)
			case <-wake:
				do(true)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-stopped }
}

// save stores the partial answer if it has changed since it had this number of changes. It returns
// the number of changes that are saved.
func (x *execution) save(since int) int {
	partial := x.live.answer.Snapshot(since)
	if partial == nil {
		return since
	}
	events := proto.CloneOf(x.eventIndexes)
	events.Messages, events.LostAfter = partial.Indexes, partial.LastIndex
	err := x.manager.o.Store.SaveProgress(x.live.ctx, &store.Progress{
		Tenant: x.live.conversation.tenant, ConversationID: x.live.conversation.id, TurnID: x.live.id,
		Messages: partial.Messages, Events: events,
	})
	switch {
	case err == nil:
		return partial.Changes
	case errors.Is(err, store.ErrTurnEnded):
		x.live.cancel(errEndedElsewhere)
	case x.live.ctx.Err() == nil:
		x.log.Warn("partial answer could not be saved", "error", err)
	}
	return since
}
