package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// saveEvery is how often an answer is saved. A crash may cost a second of it, which this and
// the time that a commit takes stay below.
const saveInterval = 500 * time.Millisecond

// Why a running turn is cut off, as the cause of its context's end, beside ErrShuttingDown
// and ErrConversationGone.
var (
	errIdleTimeout  = errors.New("the agent was silent for too long")
	errTurnTimeout  = errors.New("the agent took too long")
	errCancelled    = errors.New("the turn was cancelled")
	errDisconnected = errors.New("the last reader has left")
	errInterrupted  = errors.New("a later turn is to take its place")
)

// errDropped is why a turn does not begin: its last reader has left while it waited.
var errDroppedFromQueue = errors.New("nobody waits for the turn any more")

// respond has the agent answer and returns why it ended; nil when the answer is whole.
func (t *liveTurn) respond(request *parleyv1.RespondRequest) (err error) {
	defer func() {
		// An agent's fault is not to end the other turns.
		if fault := recover(); fault != nil {
			err = fmt.Errorf("agent panicked: %v\n%s", fault, debug.Stack())
		}
	}()
	if cause := context.Cause(t.ctx); cause != nil {
		return cause // The agent need not begin.
	}
	stop := t.startSaving()
	defer stop()
	late := time.AfterFunc(t.manager.o.TurnTimeout, func() { t.cancel(errTurnTimeout) })
	defer late.Stop()
	idle := time.AfterFunc(t.manager.o.IdleTimeout, func() { t.cancel(errIdleTimeout) })
	defer idle.Stop()
	for piece, err := range t.agent.Agent.Respond(t.ctx, request) {
		idle.Reset(t.manager.o.IdleTimeout)
		if err == nil {
			err = t.answer.addPiece(piece)
		}
		if err != nil {
			if cause := context.Cause(t.ctx); cause != nil {
				return cause
			}
			return err
		}
	}
	return context.Cause(t.ctx)
}

// saveRegularly saves the answer so far every saveEvery until stop is called. stop waits for the
// last save.
func (t *liveTurn) startSaving() (stop func()) {
	saved := 0
	return runEvery(saveInterval, func() { saved = t.save(saved) })
}

// breakSilence sends readers a sign when they have received no event for silence, until stop is
// called. It uses its own goroutine, since both the agent and the store may be slow.
func (t *liveTurn) startKeepAlive() (stop func()) {
	lastIndex, lastTime := t.events.lastIndex(), time.Now()
	return runEvery(keepAliveCheckInterval, func() {
		switch n := t.events.lastIndex(); {
		case n != lastIndex:
			lastIndex, lastTime = n, time.Now()
		case time.Since(lastTime) >= keepAliveInterval:
			lastIndex, lastTime = t.events.addKeepAlive(), time.Now()
		}
	})
}

// every calls do at an interval, in its own goroutine, until stop is called. stop returns when the
// goroutine has ended.
func runEvery(interval time.Duration, do func()) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				do()
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-stopped }
}

// save stores what has arrived if anything has since that many changes.
func (t *liveTurn) save(since int) int {
	partial := t.answer.snapshot(since)
	if partial == nil {
		return since
	}
	events := proto.CloneOf(t.eventIndexes)
	events.Messages, events.LostAfter = partial.indexes, partial.lastIndex
	err := t.manager.o.Store.SaveProgress(t.ctx, &store.Progress{
		Tenant: t.queue.tenant, ConversationID: t.queue.id, TurnID: t.id, Messages: partial.messages, Events: events,
	})
	if err != nil {
		if t.ctx.Err() == nil && !errors.Is(err, store.ErrTurnEnded) {
			t.log.Warn("answer so far could not be saved", "error", err)
		}
		return since
	}
	return partial.changes
}
