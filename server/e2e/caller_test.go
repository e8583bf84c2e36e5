package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// caller is one of several clients that call Chat in the same conversation.
type caller struct {
	chatCall
	request    *parleyv1.ChatRequest
	joins      bool // the call joins the turn of another caller
	turnID     string
	lastIndex  int32 // of the last event
	position   int32 // in the queue, from the last event; 0 after the start
	err        error // the call's error, if it ran in its own goroutine
	disconnect context.CancelFunc
}

// newCaller returns a caller that has not called Chat yet.
func newCaller(id, content string, mode parleyv1.OnBusy) *caller {
	name, _, _ := strings.Cut(content, ":")
	return &caller{request: &parleyv1.ChatRequest{
		ConversationId: id, Content: content, OnBusy: mode, RequestId: strings.ReplaceAll(name, " ", "-"),
	}}
}

// String returns the content.
func (c *caller) String() string { return c.request.GetContent() }

// call calls Chat.
func (c *caller) call(t *testing.T, s parleyv1.ConversationServiceClient) (err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c.disconnect = cancel
	c.stream, err = s.Chat(ctx, c.request)
	return err
}

// start calls Chat and receives the first event.
func (c *caller) start(t *testing.T, s parleyv1.ConversationServiceClient) error {
	t.Helper()
	if err := c.call(t, s); err != nil {
		return err
	}
	return c.nextEvent()
}

// nextEvent receives events up to the next one that changes the caller's state.
func (c *caller) nextEvent() error {
	for {
		response, err := c.stream.Recv()
		if err != nil {
			return err
		}
		event := response.GetEvent()
		c.turnID = cmp.Or(c.turnID, event.GetTurnId())
		if !follows(event, c.lastIndex) || event.GetTurnId() != c.turnID {
			return fmt.Errorf("after event %d of turn %s: %v", c.lastIndex, c.turnID, event)
		}
		c.lastIndex = event.GetIndex()
		switch position := event.GetQueued().GetPosition(); {
		case event.GetProgress() != nil:
			continue // It only shows that the turn is alive.
		case position > 0 && position == c.position:
			continue // The position is unchanged.
		case event.GetFinished() != nil:
			c.finished = event.GetFinished()
		case event.GetStarted() != nil:
			c.started, c.position = event.GetStarted(), 0
		default:
			c.text += event.GetTextDelta().GetText()
			c.position = position
		}
		return nil
	}
}

// drain receives all remaining events. It returns an error unless the stream ends with EOF.
func (c *caller) drain() error {
	for c.finished == nil {
		if err := c.nextEvent(); err != nil {
			return err
		}
	}
	if err := c.nextEvent(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after finished: %w", err)
	}
	return nil
}

// wantPosition waits for an event that places the turn at this position in the queue.
func (c *caller) wantPosition(t *testing.T, want int) {
	t.Helper()
	if err := c.nextEvent(); err != nil || int(c.position) != want {
		t.Fatalf("%s has position %d, %v; want %d", c, c.position, err, want)
	}
}

// wantStarted waits for the turn to start.
func (c *caller) wantStarted(t *testing.T) {
	t.Helper()
	if err := c.nextEvent(); err != nil || c.started == nil || c.started.GetReplayed() != c.joins || c.text != "" {
		t.Fatalf("%s: started %v with text %q, %v; want a turn that has just started", c, c.started, c.text, err)
	}
}

// wantEnd receives all remaining events of a turn and checks its final state.
func (c *caller) wantEnd(t *testing.T, want parleyv1.TurnState) {
	t.Helper()
	if err := c.drain(); err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	if got := c.finished.GetTurn().GetState(); got != want {
		t.Errorf("%s ends as %v, want %v", c, c.finished.GetTurn(), want)
	}
	c.check(t)
}

// check checks the answer and the error of a turn that has ended.
func (c *caller) check(t *testing.T) {
	t.Helper()
	turn := c.finished.GetTurn()
	complete := c.String() + ": half an answer"
	if c.request.GetAgent() == "echo" {
		complete = c.String()
	}
	if c.text != complete &&
		(turn.GetState() == parleyv1.TurnState_TURN_STATE_COMPLETED || !strings.HasPrefix(complete, c.text)) {
		t.Errorf("%s has the answer %q of %q in %v", c, c.text, complete, turn)
	}
	failure, want := turn.GetError(), map[parleyv1.TurnState]*parleyv1.TurnError{
		parleyv1.TurnState_TURN_STATE_INTERRUPTED: {Code: int32(codes.Aborted), Reason: "INTERRUPTED"},
		parleyv1.TurnState_TURN_STATE_CANCELLED:   {Code: int32(codes.Canceled), Reason: "CANCELLED"},
	}[turn.GetState()]
	if failure.GetReason() != want.GetReason() || failure.GetCode() != want.GetCode() {
		t.Errorf("%s ends with %v, want %v", c, turn, want)
	}
	if turn.GetFinishTime().AsTime().Before(turn.GetCreateTime().AsTime()) ||
		turn.GetRequestId() != c.request.GetRequestId() {
		t.Errorf("%s ends with %v, want request id %q and a finish after its creation", c, turn, c.request.GetRequestId())
	}
}

// exchange returns the exchange that must be stored for a turn that has ended.
func (c *caller) exchange() exchange {
	return exchange{question: c.String(), answer: c.text, turn: c.finished.GetTurn()}
}
