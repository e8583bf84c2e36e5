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
const saveEvery = 500 * time.Millisecond

// Why a running turn is cut off, as the cause of its context's end, beside ErrShuttingDown
// and ErrConversationGone.
var (
	errIdle        = errors.New("the agent was silent for too long")
	errLate        = errors.New("the agent took too long")
	errCancelled   = errors.New("the turn was cancelled")
	errLeft        = errors.New("the last reader has left")
	errInterrupted = errors.New("a later turn is to take its place")
)

// errDropped is why a turn does not begin: its last reader has left while it waited.
var errDropped = errors.New("nobody waits for the turn any more")

// respond has the agent answer and returns why it ended; nil when the answer is whole.
func (t *live) respond(request *parleyv1.RespondRequest) (err error) {
	defer func() {
		// An agent's fault is not to end the other turns.
		if fault := recover(); fault != nil {
			err = fmt.Errorf("agent panicked: %v\n%s", fault, debug.Stack())
		}
	}()
	if cause := context.Cause(t.ctx); cause != nil {
		return cause // The agent need not begin.
	}
	stop := t.saveRegularly()
	defer stop()
	late := time.AfterFunc(t.m.o.TurnTimeout, func() { t.cancel(errLate) })
	defer late.Stop()
	idle := time.AfterFunc(t.m.o.IdleTimeout, func() { t.cancel(errIdle) })
	defer idle.Stop()
	for piece, err := range t.entry.Agent.Respond(t.ctx, request) {
		idle.Reset(t.m.o.IdleTimeout)
		if err == nil {
			err = t.answer.add(piece)
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
func (t *live) saveRegularly() (stop func()) {
	saved := 0
	return every(saveEvery, func() { saved = t.save(saved) })
}

// breakSilence sends readers a sign when they have received no event for silence, until stop is
// called. It uses its own goroutine, since both the agent and the store may be slow.
func (t *live) breakSilence() (stop func()) {
	newest, since := t.events.last(), time.Now()
	return every(silenceStep, func() {
		switch n := t.events.last(); {
		case n != newest:
			newest, since = n, time.Now()
		case time.Since(since) >= silence:
			newest, since = t.events.addSign(), time.Now()
		}
	})
}

// every calls do at an interval, in its own goroutine, until stop is called. stop returns when the
// goroutine has ended.
func every(interval time.Duration, do func()) (stop func()) {
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
func (t *live) save(since int) int {
	so := t.answer.soFar(since)
	if so == nil {
		return since
	}
	events := proto.CloneOf(t.marks)
	events.Messages, events.LostAfter = so.marks, so.last
	err := t.m.o.Store.SaveProgress(t.ctx, &store.Progress{
		Tenant: t.line.tenant, ConversationID: t.line.id, TurnID: t.id, Messages: so.messages, Events: events,
	})
	if err != nil {
		if t.ctx.Err() == nil && !errors.Is(err, store.ErrTurnEnded) {
			t.log.Warn("answer so far could not be saved", "error", err)
		}
		return since
	}
	return so.changes
}
