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
	stop := t.accompany()
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

// accompany keeps what has arrived, and tells readers in a long silence that the turn still
// runs, until the returned function is called, which waits for the last of it to be done.
func (t *live) accompany() (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(saveEvery)
		defer ticker.Stop()
		saved, told, last := 0, t.events.last(), time.Now()
		for {
			select {
			case <-ticker.C:
			case <-done:
				return
			}
			saved = t.save(saved)
			switch n := t.events.last(); {
			case n != told:
				told, last = n, time.Now()
			case time.Since(last) >= silence:
				told = t.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}})
				last = time.Now()
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
