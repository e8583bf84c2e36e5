package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// yieldEvent passes an event, or at the end an error, to the caller. It returns false if the
// caller has left the loop.
type yieldEvent = func(*parleyv1.TurnEvent, error) bool

// follower delivers the events of one turn to one caller. It opens as many streams as it needs.
type follower struct {
	retry

	client *Client
	opts   []grpc.CallOption

	chat         *parleyv1.ChatRequest // The request that starts the turn; nil once the turn has started.
	generatedID  bool                  // The client generated the request_id of chat and uses it for the first time.
	conversation string                // The id of the turn's conversation, once the turn has started.
	view         view

	after     int32 // The index after which the newest stream begins; 0 is the beginning of the turn.
	delivered bool  // The caller has received an event.
}

// run delivers the turn to its end.
func (f *follower) run(ctx context.Context, yield yieldEvent) {
	for {
		err := f.attempt(ctx, func(ctx context.Context, silence *time.Timer) error {
			return f.read(ctx, silence, yield)
		})
		if err == nil {
			return
		}
		if f.err = err; !f.waitForRetry(ctx) {
			yield(nil, f.err)
			return
		}
	}
}

// read opens one stream and delivers the new events of it. It returns nil if the turn has ended
// or the caller has left the loop.
func (f *follower) read(ctx context.Context, silence *time.Timer, yield yieldEvent) error {
	receive, err := f.open(ctx)
	if err != nil {
		return err
	}
	f.noteConnected()
	for {
		silence.Reset(f.receiveTimeout())
		event, err := receive()
		silence.Stop()
		switch {
		case errors.Is(err, io.EOF) && !f.delivered && f.after > 0:
			return nil // The caller resumed after the last event.
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the stream ended before the turn: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		case !f.deliver(event, yield):
			return nil
		case event.GetFinished() != nil:
			// The turn is over and durable, so the status of the stream does not matter. But the
			// server would see a disconnect if the client left before the server ends the stream.
			silence.Reset(maxSilence)
			_, _ = receive()
			return nil
		}
	}
}

// open opens the next stream.
func (f *follower) open(ctx context.Context) (receiveEvent, error) {
	if f.chat != nil {
		f.after = f.view.startStream(0)
		return newReceiveEvent(f.client.ConversationServiceClient.Chat(ctx, f.chat, f.opts...))
	}
	f.after = f.view.startStream(f.view.resumeIndex())
	return newReceiveEvent(f.client.ConversationServiceClient.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: f.conversation, TurnId: f.view.turn, AfterIndex: f.after,
	}, f.opts...))
}

// receiveEvent waits for the next event of a stream.
type receiveEvent = func() (*parleyv1.TurnEvent, error)

// newReceiveEvent returns a function that receives the events of stream, which carries the
// responses of Chat or of ResumeTurn.
func newReceiveEvent[R any, P interface {
	*R
	GetEvent() *parleyv1.TurnEvent
}](stream grpc.ServerStreamingClient[R], err error) (receiveEvent, error) {
	if err != nil {
		return nil, err
	}
	return func() (*parleyv1.TurnEvent, error) {
		response, err := stream.Recv()
		return P(response).GetEvent(), err
	}, nil
}

// deliver yields the new part of event, if there is one. It reports whether the caller is still in
// the loop.
func (f *follower) deliver(event *parleyv1.TurnEvent, yield yieldEvent) bool {
	if event = f.view.newPart(event); event == nil {
		return true
	}
	if started := event.GetStarted(); started != nil && f.chat != nil {
		if f.generatedID && started.GetReplayed() {
			// This call itself has sent the request more than once, perhaps in gRPC's retries.
			event = proto.CloneOf(event)
			event.GetStarted().Replayed = false
		}
		f.conversation = cmp.Or(started.GetConversation().GetId(), f.chat.GetConversationId())
		f.chat = nil
	}
	f.delivered, f.progress = true, true
	more := yield(event, nil)
	f.resetDeadline()
	return more
}

// waitForRetry waits until the next stream may be opened after one that ended with f.err. It
// returns false if there must be no other attempt; f.err is then the error for the caller.
func (f *follower) waitForRetry(ctx context.Context) bool {
	if Reason(f.err) == "EVENTS_GONE" && (f.progress || f.after > 0) && f.view.restart() {
		return true
	}
	return f.next(ctx)
}
