package mcp

import (
	"context"
	"strings"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// cancelTime is what a turn has to end when its client has left.
const cancelTime = 5 * time.Second

// turn is what is known of the turn that answers a question.
type turn struct {
	conversation string // Its id; empty while the server has not named a new one.
	id           string
	created      bool                   // The conversation did not exist before.
	finished     *parleyv1.TurnFinished // Nil: it has not ended.
}

// follow asks and follows the turn to its end, telling p of it. When ctx ends the turn is
// cancelled: who asked through a tool and left can neither come back to it nor be told of its
// end, and no agent should work for nobody. A connection to the Parley server that breaks is
// no such end; the client goes on behind it. So this calls CancelTurn, where
// ON_DISCONNECT_CANCEL would stop the agent in both cases. When this program is killed, the
// turn goes on, and its answer is in the history.
func (s *Server) follow(ctx context.Context, question *parleyv1.ChatRequest, p *progress) (*turn, error) {
	// The stream outlives ctx until it is known what to cancel.
	stream, leave := context.WithCancel(context.WithoutCancel(ctx))
	known := make(chan *parleyv1.CancelTurnRequest, 1)
	var cancelling sync.WaitGroup
	cancelling.Go(func() {
		defer leave()
		s.cancelAfter(ctx, stream, known)
	})
	defer cancelling.Wait()
	defer leave()

	t := &turn{conversation: question.GetConversationId()}
	for event, err := range s.parley.Chat(stream, question) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, errLeft
		case err != nil && t.id != "":
			return nil, &lostError{turn: t, err: err}
		case err != nil:
			return nil, err
		}
		if t.take(event) && t.conversation != "" {
			select {
			case <-known: // By another id: the turn had to line up anew.
			default:
			}
			known <- &parleyv1.CancelTurnRequest{ConversationId: t.conversation, TurnId: t.id}
		}
		p.show(event)
	}
	return t, nil
}

// cancelAfter cancels the turn of stream when ctx has ended and the turn is known. If the turn
// cannot be cancelled, it may have been lost while it queued: cancelAfter then waits for the turn
// in its place.
func (s *Server) cancelAfter(ctx, stream context.Context, known <-chan *parleyv1.CancelTurnRequest) {
	select {
	case <-ctx.Done():
	case <-stream.Done():
		return
	}
	limited, cancel := context.WithTimeout(stream, cancelTime)
	defer cancel()
	for {
		select {
		case t := <-known:
			if _, err := s.parley.CancelTurn(limited, t); err == nil {
				return
			}
		case <-limited.Done():
			return
		}
	}
}

// take notes what an event says of the turn. It reports whether the turn, or its conversation,
// has another name now than before.
func (t *turn) take(event *parleyv1.TurnEvent) bool {
	before := *t
	t.id = event.GetTurnId()
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Started:
		t.conversation, t.created = e.Started.GetConversation().GetId(), e.Started.GetCreated()
	case *parleyv1.TurnEvent_Finished:
		t.finished = e.Finished
	}
	return t.id != before.id || t.conversation != before.conversation
}

// stateName is the name of a state without its prefix.
func stateName(state parleyv1.TurnState) string {
	return strings.TrimPrefix(state.String(), "TURN_STATE_")
}
