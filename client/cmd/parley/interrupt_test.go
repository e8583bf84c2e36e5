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

// thinker is a parrot that, asked to think or to wait, goes on with that until it is
// cancelled; asked to be stubborn, even then. Asked to break, it does so on a stream that breaks.
func thinker(t *testing.T) fake {
	t.Helper()
	cancelled := make(chan struct{})
	cancelledTurn := finished(parleyv1.TurnState_TURN_STATE_CANCELLED)
	cancelledTurn.GetFinished().GetTurn().Error = &parleyv1.TurnError{Reason: "CANCELLED", Message: "the turn was cancelled"}
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
				return parrot(request, stream)
			}
			if err := send(stream, begin...); err != nil {
				return err
			}
			return think(stream)
		},
		resume: func(request *parleyv1.ResumeTurnRequest, stream *turnStream) error {
			if request.GetConversationId() != "shop" || request.GetTurnId() != "t1" || request.GetAfterIndex() != 2 {
				t.Errorf("resumed: %v, want turn t1 of shop after its second event", request)
			}
			return think(stream)
		},
		cancel: func(ctx context.Context, request *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
			if request.GetConversationId() != "shop" || request.GetTurnId() != "t1" {
				t.Errorf("cancelled: %v, want turn t1 of shop", request)
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
	address := thinker(t).serve(t)
	tests := []struct {
		name   string
		args   []string
		screen string
	}{
		{
			"one question, in a new conversation",
			[]string{"think"},
			`half a thou
cancelling the turn; another Ctrl-C leaves it at once
ask again with: bin/parley --address ` + address + ` chat -c shop --again
parley: the turn was cancelled (CANCELLED)
`,
		},
		{
			"while it waits",
			[]string{"-c", "shop", "wait"},
			`waiting, number 1 in the queue
cancelling the turn; another Ctrl-C leaves it at once
parley: the turn was cancelled (CANCELLED)
`,
		},
		{
			"when the connection was lost meanwhile",
			[]string{"-c", "shop", "break"},
			`half a thou
cancelling the turn; another Ctrl-C leaves it at once
ask again with: bin/parley --address ` + address + ` chat -c shop --again
parley: the turn was cancelled (CANCELLED)
`,
		},
		{
			"for programs",
			[]string{"--output", "json", "think"},
			`{"turnId":"t1","index":1,"started":{"conversation":{"id":"shop"
{"turnId":"t1","index":2,"textDelta":{"text":"half a thou","offset":0}}
cancelling the turn; another Ctrl-C leaves it at once
{"turnId":"t1","index":3,"finished":{"turn":{"id":"",
ask again with: bin/parley --address ` + address + ` chat -c shop --again
parley: the turn was cancelled (CANCELLED)
`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := open(t.Context(), t, append([]string{"--address", address, "chat"}, test.args...)...)
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

func TestInterruptsOfAConversation(t *testing.T) {
	s := open(t.Context(), t, "--address", thinker(t).serve(t), "chat", "-c", "shop")
	s.expect("> ")
	s.enter("think")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; another Ctrl-C leaves it at once\nparley: the turn was cancelled (CANCELLED)\n> ")
	s.enter("stubborn")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; another Ctrl-C leaves it at once\n")
	s.interrupt()
	s.expect("parley: left before the turn had ended\n> ")
	s.enter("hello")
	s.expect("in shop: hello\n> ")
	s.interrupt()
	s.expectEnd(0)
}

func TestSecondInterruptLeavesOneQuestion(t *testing.T) {
	address := thinker(t).serve(t)
	s := open(t.Context(), t, "--address", address, "chat", "stubborn")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; another Ctrl-C leaves it at once\n")
	s.interrupt()
	s.expect("see what came of it with: bin/parley --address " + address + " resume shop t1\nparley: left before the turn had ended\n")
	s.expectEnd(1)
}

func TestInterruptThatCannotCancel(t *testing.T) {
	f := thinker(t)
	f.cancel = func(context.Context, *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
		return nil, status.Error(codes.Internal, "out of order")
	}
	s := open(t.Context(), t, "--address", f.serve(t), "chat", "stubborn")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\ncancelling the turn; another Ctrl-C leaves it at once\nthe turn goes on, it could not be cancelled: out of order (Internal)\n")
	s.interrupt()
	s.expect("parley: left before the turn had ended\n")
	s.expectEnd(1)
}

func TestInterruptBeforeAnything(t *testing.T) {
	tests := map[string][]string{
		"parley: interrupted before the server replied; it may have taken the question\n": {"chat", "never"},
		"parley: interrupted\n": {"resume", "never"},
	}
	f := fake{chat: parrot, resume: func(_ *parleyv1.ResumeTurnRequest, stream *turnStream) error { return hang(stream) }}
	address := f.serve(t)
	for text, args := range tests {
		s := open(t.Context(), t, append([]string{"--address", address}, args...)...)
		s.interrupt()
		s.expect(text)
		s.expectEnd(1)
	}
}

func TestInterruptOfTyping(t *testing.T) {
	s := open(t.Context(), t, "chat", "-")
	s.interrupt()
	s.expect("parley: interrupted\n")
	s.expectEnd(1)
}

// Who only watches a turn is not the one to end it.
func TestInterruptOfWatchingCancelsNothing(t *testing.T) {
	f := fake{
		resume: func(_ *parleyv1.ResumeTurnRequest, stream *turnStream) error {
			return hang(stream, started("shop"), delta("half a thou"))
		},
		cancel: func(context.Context, *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
			t.Error("the turn was cancelled")
			return nil, nil
		},
	}
	address := f.serve(t)
	s := open(t.Context(), t, "--address", address, "resume", "shop")
	s.expect("half a thou")
	s.interrupt()
	s.expect("\nparley: stopped watching; the turn is left alone, cancel it with: bin/parley --address " + address + " cancel shop t1\n")
	s.expectEnd(1)
}
