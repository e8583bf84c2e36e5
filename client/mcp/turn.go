package mcp

import (
	"context"
	"strings"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// cancelTime limits the time to cancel a turn after its client has disconnected.
const cancelTime = 5 * time.Second

// turn records the known state of the turn that answers a question.
type turn struct {
	conversation string // The id; empty until the server has chosen the id of a new one.
	id           string
	created      bool                   // The conversation did not exist before.
	finished     *parleyv1.TurnFinished // nil until the turn has ended
}

// follow sends question, reports the events of its turn to p, and returns the turn when it has ended. When ctx ends,
// follow cancels the turn, because an MCP client cannot return to it or learn of its end. After a
// broken connection to the Parley server the turn continues, and the client resumes it. Therefore
// follow calls CancelTurn: ON_DISCONNECT_CANCEL would cancel the turn in both cases. If this program is
// killed, the turn continues, and its answer is stored in the history.
func (s *Server) follow(ctx context.Context, question *parleyv1.ChatRequest, p *progress) (*turn, error) {
	// The stream continues after the end of ctx until the turn to cancel is known.
	stream, stop := context.WithCancel(context.WithoutCancel(ctx))
	known := make(chan *parleyv1.CancelTurnRequest, 1)
	var cancelling sync.WaitGroup
	cancelling.Go(func() {
		defer stop()
		s.cancelAfter(ctx, stream, known)
	})
	defer cancelling.Wait()
	defer stop()

	t := &turn{conversation: question.GetConversationId()}
	for event, err := range s.parley.Chat(stream, question) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, errCancelled
		case err != nil && t.id != "":
			return nil, &lostError{turn: t, err: err}
		case err != nil:
			return nil, err
		}
		if t.update(event) && t.conversation != "" {
			select {
			case <-known: // The turn was queued again and has another id.
			default:
			}
			known <- &parleyv1.CancelTurnRequest{ConversationId: t.conversation, TurnId: t.id}
		}
		p.report(event)
	}
	return t, nil
}

// cancelAfter cancels the turn of stream when ctx has ended and the turn is known. If the turn cannot be
// cancelled, it may have been lost from the queue; cancelAfter then waits for the turn that replaces it.
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

// update records an event. It reports whether the id of the turn or of its conversation has changed.
func (t *turn) update(event *parleyv1.TurnEvent) bool {
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

// stateName returns the name of a state without its prefix.
func stateName(state parleyv1.TurnState) string {
	return strings.TrimPrefix(state.String(), "TURN_STATE_")
}
