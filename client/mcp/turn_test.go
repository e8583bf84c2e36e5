package mcp

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// patience is the time that a test waits for an event.
const patience = time.Minute

// queueingTwice is a server that loses the queued turn of a question once, as in a restart. The
// question is then in another turn, which the server announces only after the first turn was
// cancelled.
type queueingTwice struct {
	parleyv1.UnimplementedConversationServiceServer

	queued    chan string   // receives the id of the first turn
	cancelled chan string   // receives the id of each turn to cancel
	started   chan struct{} // closed when the second turn may start
	ended     chan struct{} // closed when the second turn is cancelled

	mu    sync.Mutex
	chats int
}

func (q *queueingTwice) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	q.mu.Lock()
	q.chats++
	first := q.chats == 1
	q.mu.Unlock()
	if first {
		event := &parleyv1.TurnEvent{TurnId: "first", Index: 1, Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: 1}}}
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
	select { // The turn outlives its reader.
	case <-q.ended:
	case <-stream.Context().Done():
	}
	return status.Error(codes.Canceled, "cancelled")
}

func (q *queueingTwice) CancelTurn(_ context.Context, r *parleyv1.CancelTurnRequest) (*parleyv1.CancelTurnResponse, error) {
	q.cancelled <- r.GetTurnId()
	if r.GetTurnId() == "first" {
		close(q.started)
		return nil, status.Error(codes.NotFound, "no such turn")
	}
	close(q.ended)
	return &parleyv1.CancelTurnResponse{}, nil
}

// TestCancelWhileQueueingAgain: a question that is cancelled while it queues again, in another
// turn, cancels that turn too.
func TestCancelWhileQueueingAgain(t *testing.T) {
	q := &queueingTwice{queued: make(chan string), cancelled: make(chan string, 8), started: make(chan struct{}), ended: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterConversationServiceServer(server, q)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	c, err := client.Dial(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })

	ctx, leave := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		question := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE}
		_, err := New(c, Options{}).follow(ctx, question, &progress{notify: func(string) { leave() }})
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
		case <-time.After(patience):
			t.Fatalf("turn %s was not cancelled", want)
		}
	}
	if err := <-asked; !errors.Is(err, errLeft) {
		t.Errorf("follow = %v, want %v", err, errLeft)
	}
}
