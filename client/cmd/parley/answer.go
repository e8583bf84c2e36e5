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
	// errInterruptedEarly is the error of Ctrl-C before the first event of the turn.
	errInterruptedEarly = errors.New("interrupted before the server replied; it may have received the message")
	// errStoppedWaiting is the error of a second Ctrl-C, while the turn is being cancelled.
	errStoppedWaiting = errors.New("stopped waiting before the turn ended")
)

// silenceNotice is the time without an event after which answer prints a notice, if waitForServer is set.
const silenceNotice = 3 * time.Second

// answerOptions are the options of answer.
type answerOptions struct {
	mayBeRepeated bool // The request may have been sent before, with the same request id.
	waitForServer bool // Wait while the server is unavailable, for example during a restart.
}

// answer sends request and prints the events of the turn as they arrive. The first Ctrl-C cancels the
// turn, and answer continues to the turn's last event. A second Ctrl-C, or one before the turn has
// begun, ends the call. The returned view is valid even if there is an error.
func (a *app) answer(
	ctx context.Context, c *client.Client, request *parleyv1.ChatRequest, options answerOptions,
) (view, error) {
	seen := view{
		agent: request.GetAgent(), namedConversation: request.GetConversationId() != "", mayBeRepeated: options.mayBeRepeated,
	}
	ctx, stop := context.WithCancelCause(ctx)
	var opts []grpc.CallOption
	var silent <-chan time.Time
	if options.waitForServer {
		opts, silent = append(opts, grpc.WaitForReady(true)), time.After(silenceNotice)
	}
	steps := receive(c.Chat(ctx, request, opts...))
	cancelErrs := make(chan error, 1)
	var cancelling sync.WaitGroup
	defer func() {
		stop(nil)
		for range steps { // Wait until the stream has ended.
		}
		cancelling.Wait()
	}()
	for cancelled := false; ; {
		var err error
		select {
		case s, more := <-steps:
			switch {
			case !more:
				return seen, nil
			case s.err != nil:
				err = errors.Join(a.endLine(&seen), streamError(ctx, &seen, s.err))
			default:
				err = a.show(s.event, &seen)
			}
		case <-a.interrupts:
			if cancelled || !seen.running() {
				stop(errInterrupted)
				continue
			}
			cancelled = true
			err = a.note(&seen, "cancelling the turn; press Ctrl-C again to stop waiting")
			turn := seen.cancelRequest(request)
			cancelling.Go(func() {
				_, err := c.CancelTurn(ctx, turn)
				cancelErrs <- err
			})
		case <-silent:
			if seen.turnID == "" {
				err = a.note(&seen, fmt.Sprintf("no reply from %s yet; still trying, press Ctrl-C to give up", a.address))
			}
		case failure := <-cancelErrs:
			if failure != nil && seen.running() && ctx.Err() == nil {
				err = a.note(&seen, "the turn continues, cancelling failed: "+a.explain(failure))
			}
		}
		if err != nil {
			return seen, err
		}
	}
}

// streamError returns the error for the user after a stream ended with err, which may be due to Ctrl-C.
func streamError(ctx context.Context, seen *view, err error) error {
	switch {
	case !errors.Is(context.Cause(ctx), errInterrupted):
		return err
	case seen.turnID == "":
		return errInterruptedEarly
	default:
		return errStoppedWaiting
	}
}

// step is an event of a turn or, at the end, an error.
type step struct {
	event *parleyv1.TurnEvent
	err   error
}

// receive returns a channel of the steps of turn. The caller must read it until it is closed.
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
