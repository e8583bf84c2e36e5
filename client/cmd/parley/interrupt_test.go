package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// cancellableFake returns a fake that answers like echoChat, except for these messages: "think" and "wait" continue
// until the turn is cancelled, "stubborn" continues even then, and "break" breaks the stream first.
func cancellableFake(t *testing.T) fake {
	t.Helper()
	cancelled := make(chan struct{})
	cancelledTurn := finished(parleyv1.TurnState_TURN_STATE_CANCELLED)
	cancelledTurn.GetFinished().GetTurn().Error = &parleyv1.TurnError{
		Reason: "CANCELLED", Message: "the turn was cancelled",
	}
	think := func(stream *turnStream) error {
		select {
		case <-cancelled:
			return send(stream, cancelledTurn)
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return fake{
		chat: func(request *parleyv1.ChatRequest, stream *turnStream) error {
			begin := []*parleyv1.TurnEvent{started("shop"), delta("half a thou")}
			switch request.GetContent() {
			case "think":
			case "wait":
				begin = []*parleyv1.TurnEvent{queued(1)}
			case "break":
				return errors.Join(send(stream, begin...), status.Error(codes.Unavailable, "closing"))
			case "stubborn":
				return hang(stream, begin...)
			default:
				return echoChat(request, stream)
			}
			if err := send(stream, begin...); err != nil {
				return err
			}
			return think(stream)
		},
		resume: func(request *parleyv1.ResumeTurnRequest, stream *turnStream) error {
			if request.GetConversationId() != "shop" || request.GetTurnId() != "t1" || request.GetAfterIndex() != 2 {
				t.Errorf("ResumeTurn(%v), want turn t1 of shop after its second event", request)
			}
			return think(stream)
		},
		cancel: func(ctx context.Context, request *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
			if request.GetConversationId() != "shop" || request.GetTurnId() != "t1" {
				t.Errorf("CancelTurn(%v), want turn t1 of shop", request)
			}
			select {
			case cancelled <- struct{}{}:
				return cancelledTurn.GetFinished().GetTurn(), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
}

func TestInterruptCancelsAnAnswer(t *testing.T) {
	address := cancellableFake(t).serve(t)
	tests := []struct {
		name   string
		args   []string
		screen string
	}{
		{
			"one message in a new conversation",
			[]string{"think"},
			`half a thou
cancelling the turn; press Ctrl-C again to stop waiting
ask again with: bin/parley --address ` + address + ` chat -c shop --again
parley: the turn was cancelled (CANCELLED)
`,
		},
		{
			"a queued turn",
			[]string{"-c", "shop", "wait"},
			`waiting, number 1 in the queue
cancelling the turn; press Ctrl-C again to stop waiting
parley: the turn was cancelled (CANCELLED)
`,
		},
		{
			"after a lost connection",
			[]string{"-c", "shop", "break"},
			`half a thou
cancelling the turn; press Ctrl-C again to stop waiting
ask again with: bin/parley --address ` + address + ` chat -c shop --again
parley: the turn was cancelled (CANCELLED)
`,
		},
		{
			"as JSON",
			[]string{"--output", "json", "think"},
			`{"turnId":"t1","index":1,"started":{"conversation":{"id":"shop"
{"turnId":"t1","index":2,"textDelta":{"text":"half a thou","offset":0}}
cancelling the turn; press Ctrl-C again to stop waiting
{"turnId":"t1","index":3,"finished":{"turn":{"id":"",
ask again with: bin/parley --address ` + address + ` chat -c shop --again
parley: the turn was cancelled (CANCELLED)
`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openTerminal(t.Context(), t, append([]string{"--address", address, "chat"}, test.args...)...)
			before, after, _ := strings.Cut(test.screen, "cancelling")
			for line := range strings.Lines(before) {
				s.expect(strings.TrimSuffix(line, "\n"))
			}
			s.interrupt()
			for line := range strings.Lines("\ncancelling" + after) {
				s.expect(strings.TrimSuffix(line, "\n"))
			}
			s.expectEnd(1)
		})
	}
}

func TestInterruptsOfAnInteractiveChat(t *testing.T) {
	s := openTerminal(t.Context(), t, "--address", cancellableFake(t).serve(t), "chat", "-c", "shop")
	s.expect("> ")
	s.enter("think")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; press Ctrl-C again to stop waiting\nparley: the turn was cancelled (CANCELLED)\n> ")
	s.enter("stubborn")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; press Ctrl-C again to stop waiting\n")
	s.interrupt()
	s.expect("parley: stopped waiting before the turn ended\n> ")
	s.enter("hello")
	s.expect("in shop: hello\n> ")
	s.interrupt()
	s.expectEnd(0)
}

func TestSecondInterruptEndsChat(t *testing.T) {
	address := cancellableFake(t).serve(t)
	s := openTerminal(t.Context(), t, "--address", address, "chat", "stubborn")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; press Ctrl-C again to stop waiting\n")
	s.interrupt()
	s.expect("see the result with: bin/parley --address " + address + " resume shop t1\nparley: stopped waiting before " +
		"the turn ended\n")
	s.expectEnd(1)
}

func TestInterruptWithFailedCancel(t *testing.T) {
	f := cancellableFake(t)
	f.cancel = func(context.Context, *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
		return nil, status.Error(codes.Internal, "out of order")
	}
	s := openTerminal(t.Context(), t, "--address", f.serve(t), "chat", "stubborn")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; press Ctrl-C again to stop waiting\nthe turn continues, cancelling failed: out of " +
		"order (Internal)\n")
	s.interrupt()
	s.expect("parley: stopped waiting before the turn ended\n")
	s.expectEnd(1)
}

func TestInterruptBeforeTheFirstEvent(t *testing.T) {
	tests := map[string][]string{
		"parley: interrupted before the server replied; it may have received the message\n": {"chat", "never"},
		"parley: interrupted\n": {"resume", "never"},
	}
	f := fake{
		chat: echoChat, resume: func(_ *parleyv1.ResumeTurnRequest, stream *turnStream) error { return hang(stream) },
	}
	address := f.serve(t)
	for text, args := range tests {
		s := openTerminal(t.Context(), t, append([]string{"--address", address}, args...)...)
		s.interrupt()
		s.expect(text)
		s.expectEnd(1)
	}
}

func TestInterruptWhileReadingInput(t *testing.T) {
	s := openTerminal(t.Context(), t, "chat", "-")
	s.interrupt()
	s.expect("parley: interrupted\n")
	s.expectEnd(1)
}

// TestInterruptOfResumeDoesNotCancel checks that Ctrl-C during resume does not cancel the turn.
func TestInterruptOfResumeDoesNotCancel(t *testing.T) {
	f := fake{
		resume: func(_ *parleyv1.ResumeTurnRequest, stream *turnStream) error {
			return hang(stream, started("shop"), delta("half a thou"))
		},
		cancel: func(context.Context, *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
			t.Error("the server received CancelTurn, want none")
			return nil, nil
		},
	}
	address := f.serve(t)
	s := openTerminal(t.Context(), t, "--address", address, "resume", "shop")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\nparley: stopped watching; the turn continues, cancel it with: bin/parley --address " + address + " cancel shop t1\n")
	s.expectEnd(1)
}
