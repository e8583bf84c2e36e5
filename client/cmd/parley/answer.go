package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

var (
	// errTooEarly says what Ctrl-C did before anything had come of a question.
	errTooEarly = errors.New("interrupted before the server replied; it may have taken the question")
	// errLeft says what Ctrl-C did while the turn was being cancelled.
	errLeft = errors.New("left before the turn had ended")
)

// awaited is how long a server that was there may say nothing before that is told.
const awaited = 3 * time.Second

// question is what is known of a request beside its content.
type question struct {
	again bool // It may have been asked before.
	met   bool // The server was there: it is waited for, say while it is started anew.
}

// answer sends request and shows the events of the turn as they come. Ctrl-C cancels the
// turn, whose end is then the last event; another one, or one before there is a turn to
// cancel, ends the call. The view says how far that went, also when there is an error.
func (a *app) answer(ctx context.Context, c *client.Client, request *parleyv1.ChatRequest, q question) (view, error) {
	got := view{agent: request.GetAgent(), named: request.GetConversationId() != "", again: q.again}
	ctx, leave := context.WithCancelCause(ctx)
	var opts []grpc.CallOption
	var late <-chan time.Time
	if q.met {
		opts, late = append(opts, grpc.WaitForReady(true)), time.After(awaited)
	}
	steps := receive(c.Chat(ctx, request, opts...))
	refused := make(chan error, 1)
	var cancelling sync.WaitGroup
	defer func() {
		leave(nil)
		for range steps { // Until the stream has ended, too.
		}
		cancelling.Wait()
	}()
	for cancelled := false; ; {
		var err error
		select {
		case s, more := <-steps:
			switch {
			case !more:
				return got, nil
			case s.err != nil:
				err = errors.Join(a.endLine(&got), left(ctx, &got, s.err))
			default:
				err = a.show(s.event, &got)
			}
		case <-a.interrupts:
			if cancelled || !got.runs() {
				leave(errInterrupted)
				continue
			}
			cancelled = true
			err = a.note(&got, "cancelling the turn; another Ctrl-C leaves it at once")
			turn := got.cancellation(request)
			cancelling.Go(func() {
				_, err := c.CancelTurn(ctx, turn)
				refused <- err
			})
		case <-late:
			if got.turnID == "" {
				err = a.note(&got, fmt.Sprintf("nothing from %s yet; trying on, Ctrl-C gives up", a.address))
			}
		case failure := <-refused:
			if failure != nil && got.runs() && ctx.Err() == nil {
				err = a.note(&got, "the turn goes on, it could not be cancelled: "+a.explain(failure))
			}
		}
		if err != nil {
			return got, err
		}
	}
}

// left is what ended a stream: Ctrl-C, or else err.
func left(ctx context.Context, got *view, err error) error {
	switch {
	case !errors.Is(context.Cause(ctx), errInterrupted):
		return err
	case got.turnID == "":
		return errTooEarly
	default:
		return errLeft
	}
}

// step is what a turn brings next: an event or, last, an error.
type step struct {
	event *parleyv1.TurnEvent
	err   error
}

// receive sends what turn yields, then closes the channel. It must be read to its end.
func receive(turn iter.Seq2[*parleyv1.TurnEvent, error]) <-chan step {
	steps := make(chan step)
	go func() {
		defer close(steps)
		for event, err := range turn {
			steps <- step{event, err}
		}
	}()
	return steps
}
