package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// caller is one of several that want an answer in the same conversation.
type caller struct {
	talk
	request  *parleyv1.ChatRequest
	joins    bool // the turn of another
	turnID   string
	events   int32 // how many have come
	position int32 // in line, as was told last; 0: it has started
	err      error // why the call ended, where it ran beside others
	leave    context.CancelFunc
}

// newCaller has not called yet.
func newCaller(id, content string, mode parleyv1.OnBusy) *caller {
	name, _, _ := strings.Cut(content, ":")
	return &caller{request: &parleyv1.ChatRequest{
		ConversationId: id, Content: content, OnBusy: mode, RequestId: strings.ReplaceAll(name, " ", "-"),
	}}
}

// String is the content.
func (c *caller) String() string { return c.request.GetContent() }

// call calls.
func (c *caller) call(t *testing.T, s parleyv1.ConversationServiceClient) (err error) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	c.leave = leave
	c.stream, err = s.Chat(ctx, c.request)
	return err
}

// begin calls and takes the first event.
func (c *caller) begin(t *testing.T, s parleyv1.ConversationServiceClient) error {
	t.Helper()
	if err := c.call(t, s); err != nil {
		return err
	}
	return c.step()
}

// step takes the next event that tells anything new.
func (c *caller) step() error {
	for {
		response, err := c.stream.Recv()
		if err != nil {
			return err
		}
		event := response.GetEvent()
		c.events++
		if c.events == 1 {
			c.turnID = event.GetTurnId()
		}
		if event.GetIndex() != c.events || event.GetTurnId() != c.turnID {
			return fmt.Errorf("event %d of turn %s is %v", c.events, c.turnID, event)
		}
		switch position := event.GetQueued().GetPosition(); {
		case event.GetProgress() != nil:
			continue // A long silence.
		case position > 0 && position == c.position:
			continue // The same.
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

// hearAll takes all that is left, and returns an error unless the stream ends well.
func (c *caller) hearAll() error {
	for c.finished == nil {
		if err := c.step(); err != nil {
			return err
		}
	}
	if err := c.step(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after finished: %w", err)
	}
	return nil
}

// wantPosition waits for the news that the turn is at this place in line.
func (c *caller) wantPosition(t *testing.T, want int) {
	t.Helper()
	if err := c.step(); err != nil || int(c.position) != want {
		t.Fatalf("%s is at %d in line, %v; want %d", c, c.position, err, want)
	}
}

// wantStarted waits for the turn to start.
func (c *caller) wantStarted(t *testing.T) {
	t.Helper()
	if err := c.step(); err != nil || c.started == nil || c.started.GetReplayed() != c.joins || c.text != "" {
		t.Fatalf("%s has not just started: %v, %q, %v", c, c.started, c.text, err)
	}
}

// wantEnd takes all that is left of a turn that is to end in this state.
func (c *caller) wantEnd(t *testing.T, want parleyv1.TurnState) {
	t.Helper()
	if err := c.hearAll(); err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	if got := c.finished.GetTurn().GetState(); got != want {
		t.Errorf("%s ends as %v, want %v", c, c.finished.GetTurn(), want)
	}
	c.check(t)
}

// check looks at a turn whose end has been told.
func (c *caller) check(t *testing.T) {
	t.Helper()
	turn := c.finished.GetTurn()
	whole := c.String() + ": half an answer"
	if c.request.GetAgent() == "echo" {
		whole = c.String()
	}
	if c.text != whole && (turn.GetState() == parleyv1.TurnState_TURN_STATE_COMPLETED || !strings.HasPrefix(whole, c.text)) {
		t.Errorf("%s has the answer %q, and is %v", c, c.text, turn)
	}
	failure, want := turn.GetError(), map[parleyv1.TurnState]*parleyv1.TurnError{
		parleyv1.TurnState_TURN_STATE_INTERRUPTED: {Code: int32(codes.Aborted), Reason: "INTERRUPTED"},
		parleyv1.TurnState_TURN_STATE_CANCELLED:   {Code: int32(codes.Canceled), Reason: "CANCELLED"},
	}[turn.GetState()]
	if failure.GetReason() != want.GetReason() || failure.GetCode() != want.GetCode() {
		t.Errorf("%s ends with %v, want %v", c, turn, want)
	}
	if turn.GetFinishTime().AsTime().Before(turn.GetCreateTime().AsTime()) || turn.GetRequestId() != c.request.GetRequestId() {
		t.Errorf("%s ends with %v", c, turn)
	}
}

// kept is what is to be kept of a turn that has ended.
func (c *caller) kept() exchange {
	return exchange{question: c.String(), answer: c.text, turn: c.finished.GetTurn()}
}
