package mcp

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// testTimeout limits the wait for an event.
const testTimeout = time.Minute

// requeueFake is a server that loses the queued turn of a question once, like in a restart. It then queues another turn
// for the question, and announces it only after the first one was cancelled.
type requeueFake struct {
	parleyv1.UnimplementedConversationServiceServer

	queued    chan string   // Closed when the first turn may end.
	cancelled chan string   // Receives the id of each turn to cancel.
	started   chan struct{} // Closed when the second turn may start.
	ended     chan struct{} // Closed when the second turn is cancelled.

	mu    sync.Mutex
	chats int
}

func (q *requeueFake) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	q.mu.Lock()
	q.chats++
	first := q.chats == 1
	q.mu.Unlock()
	if first {
		event := &parleyv1.TurnEvent{
			TurnId: "first", Index: 1, Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: 1}},
		}
		if err := stream.Send(&parleyv1.ChatResponse{Event: event}); err != nil {
			return err
		}
		<-q.queued
		return status.Error(codes.Unavailable, "the server restarts")
	}
	select {
	case <-q.started:
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	event := &parleyv1.TurnEvent{TurnId: "second", Index: 1, Event: &parleyv1.TurnEvent_Started{
		Started: &parleyv1.TurnStarted{Conversation: &parleyv1.Conversation{Id: r.GetConversationId()}},
	}}
	if err := stream.Send(&parleyv1.ChatResponse{Event: event}); err != nil {
		return err
	}
	select { // The turn continues without its reader.
	case <-q.ended:
	case <-stream.Context().Done():
	}
	return status.Error(codes.Canceled, "cancelled")
}

func (q *requeueFake) CancelTurn(
	_ context.Context, r *parleyv1.CancelTurnRequest,
) (*parleyv1.CancelTurnResponse, error) {
	q.cancelled <- r.GetTurnId()
	if r.GetTurnId() == "first" {
		close(q.started)
		return nil, status.Error(codes.NotFound, "no such turn")
	}
	close(q.ended)
	return &parleyv1.CancelTurnResponse{}, nil
}

// TestCancelRequeuedQuestion checks that follow cancels the second turn of a question that was queued again.
func TestCancelRequeuedQuestion(t *testing.T) {
	q := &requeueFake{
		queued: make(chan string), cancelled: make(chan string, 8), started: make(chan struct{}), ended: make(chan struct{}),
	}
	c := dialFake(t, func(s *grpc.Server) { parleyv1.RegisterConversationServiceServer(s, q) })

	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		question := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE}
		_, err := New(c, Options{}).follow(ctx, question, &progress{notify: func(string) { cancel() }})
		asked <- err
	}()
	for _, want := range []string{"first", "second"} {
		if want == "second" {
			close(q.queued)
		}
		select {
		case got := <-q.cancelled:
			if got != want {
				t.Errorf("CancelTurn(%s), want %s", got, want)
			}
		case <-time.After(testTimeout):
			t.Fatalf("turn %s was not cancelled", want)
		}
	}
	if err := <-asked; !errors.Is(err, errCancelled) {
		t.Errorf("follow() = %v, want %v", err, errCancelled)
	}
}
