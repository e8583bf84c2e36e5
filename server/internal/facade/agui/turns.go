package agui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// maxPage is the maximum number of turns or messages on a page.
const maxPage = 1000

// connect streams the messages of a thread, and then the events of the run that is named or that runs.
func (c *request) connect(ctx context.Context) error {
	threadID, runID := c.query.Get(threadIDParameter), c.query.Get(runIDParameter)
	var f faults
	if threadID == "" {
		f.add(threadIDParameter, "is required as a parameter")
	}
	if err := f.err(); err != nil {
		return c.refuse(err)
	}
	if c.lastEventID != "" {
		return c.resume(ctx, threadID, runID)
	}
	var turn *parleyv1.Turn
	var err error
	if runID == "" {
		turn, err = c.runningTurn(ctx, threadID)
	} else if turn, err = c.findTurn(ctx, threadID, runID); err == nil && turn == nil {
		err = c.refuse(errRunNotFound(threadID, runID))
	}
	if err != nil {
		return err
	}
	if turn != nil {
		return c.replay(ctx, turn)
	}
	t := c.translation(threadID, uuid.NewString())
	return t.idle(ctx)
}

// cancel cancels the run that is named or that runs.
func (c *request) cancel(ctx context.Context) error {
	threadID, runID := c.query.Get(threadIDParameter), c.query.Get(runIDParameter)
	var f faults
	if threadID == "" {
		f.add(threadIDParameter, "is required as a parameter")
	}
	if err := f.err(); err != nil {
		return c.refuse(err)
	}
	var turn *parleyv1.Turn
	var err error
	if runID == "" {
		turn, err = c.runningTurn(ctx, threadID)
	} else {
		turn, err = c.findTurn(ctx, threadID, runID)
	}
	if err != nil {
		return err
	}
	if turn == nil {
		return c.refuse(errRunNotFound(threadID, runID))
	}
	_, err = c.api.CancelTurn(ctx, &parleyv1.CancelTurnRequest{ConversationId: threadID, TurnId: turn.GetId()})
	return err
}

func errRunNotFound(threadID, runID string) error {
	text := fmt.Sprintf("thread %.80q has no run %.80q, or it was deleted", threadID, runID)
	if runID == "" {
		text = fmt.Sprintf("no run of thread %.80q is active", threadID)
	}
	return gateway.NewStatus(codes.NotFound, "TURN_NOT_FOUND", text).Err()
}

// isMissing reports whether an error says that a conversation does not exist.
func isMissing(err error) bool {
	return gateway.Reason(status.Convert(err)) == "CONVERSATION_NOT_FOUND"
}

// runningTurn returns the turn of a thread that runs, or else the first one in the queue; nil if there is none.
func (c *request) runningTurn(ctx context.Context, threadID string) (*parleyv1.Turn, error) {
	var found *parleyv1.Turn
	err := c.eachTurn(ctx, threadID, func(turn *parleyv1.Turn) bool {
		found = turn // The list begins with the newest turn.
		return turn.GetState() == parleyv1.TurnState_TURN_STATE_RUNNING
	}, parleyv1.TurnState_TURN_STATE_RUNNING, parleyv1.TurnState_TURN_STATE_QUEUED)
	return found, err
}

// findTurn returns the turn of a run, nil if there is none. A turn that was started without a request_id has its own
// id as the id of the run.
func (c *request) findTurn(ctx context.Context, threadID, runID string) (*parleyv1.Turn, error) {
	var found *parleyv1.Turn
	err := c.eachTurn(ctx, threadID, func(turn *parleyv1.Turn) bool {
		if runID != runIDOf(turn) {
			return false
		}
		found = turn
		return true
	})
	return found, err
}

// runIDOf returns the id of the run that a turn is.
func runIDOf(turn *parleyv1.Turn) string {
	if id := turn.GetRequestId(); id != "" {
		return id
	}
	return turn.GetId()
}

// eachTurn calls visit for the turns of a thread in these states, newest first, until visit returns true.
func (c *request) eachTurn(
	ctx context.Context, threadID string, visit func(*parleyv1.Turn) bool, states ...parleyv1.TurnState,
) error {
	list := &parleyv1.ListTurnsRequest{ConversationId: threadID, States: states}
	for {
		page, err := c.api.ListTurns(ctx, list)
		switch {
		case isMissing(err):
			return nil
		case err != nil:
			return err
		}
		if slices.ContainsFunc(page.GetTurns(), visit) {
			return nil
		}
		if list.PageToken = page.GetNextPageToken(); list.PageToken == "" {
			return nil
		}
		list.PageSize = maxPage
	}
}

// replay streams a run from its beginning, after the messages that the thread had before.
func (c *request) replay(ctx context.Context, turn *parleyv1.Turn) error {
	t := c.translation(turn.GetConversationId(), runIDOf(turn))
	switch turn.GetState() {
	case parleyv1.TurnState_TURN_STATE_QUEUED, parleyv1.TurnState_TURN_STATE_RUNNING:
		return c.follow(ctx, t, turn.GetConversationId(), turn.GetId())
	}
	return t.ended(ctx, turn)
}

// resume streams the events of a run after the one with the id in the header Last-Event-ID.
func (c *request) resume(ctx context.Context, threadID, runID string) error {
	at, ok := parsePosition(c.lastEventID)
	if !ok {
		var f faults
		f.add(lastEventID, "is not the id of an event; send the id that was received last, or omit the header")
		return c.refuse(f.err())
	}
	t := c.translation(threadID, runID)
	t.at = at
	return c.follow(ctx, t, threadID, at.turnID)
}

// follow streams the events of a turn after the position of the translation.
func (c *request) follow(ctx context.Context, t *translation, threadID, turnID string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	after := t.at.index
	if t.at.textPending {
		after = 0
	}
	events, first, err := c.openTurn(ctx, threadID, turnID, after)
	if after > 0 && gateway.Reason(status.Convert(err)) == "EVENTS_GONE" {
		after = 0
		events, first, err = c.openTurn(ctx, threadID, turnID, 0)
	}
	switch {
	case errors.Is(err, io.EOF) && c.out.begun:
		return nil
	case errors.Is(err, io.EOF): // The client has all events.
		c.out.w.WriteHeader(http.StatusNoContent)
		return nil
	case err != nil:
		return err
	}
	t.startAfter(after)
	return t.run(ctx, func() (*parleyv1.TurnEvent, error) {
		if first != nil {
			event := first
			first = nil
			return event, nil
		}
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}

// maxSilence is how long a response waits for the first event of a turn, which may be silent for a while. After that
// the header is sent, and an error is an event.
const maxSilence = 250 * time.Millisecond

// openTurn opens the stream of a turn's events and receives the first one.
func (c *request) openTurn(
	ctx context.Context, threadID, turnID string, after int32,
) (parleyv1.ConversationService_ResumeTurnClient, *parleyv1.TurnEvent, error) {
	events, err := c.api.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: threadID, TurnId: turnID, AfterIndex: after,
	})
	if err != nil {
		return nil, nil, err
	}
	var reply *parleyv1.ResumeTurnResponse
	arrived := make(chan struct{})
	go func() { // It ends when the call ends.
		defer close(arrived)
		reply, err = events.Recv()
	}()
	timer := time.NewTimer(maxSilence)
	defer timer.Stop()
	select {
	case <-arrived:
	case <-timer.C:
		c.out.addComment()
		c.out.flush()
		<-arrived
	}
	return events, reply.GetEvent(), err
}
