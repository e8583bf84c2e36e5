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

// yielder takes events, or last an error; false: no more.
type yielder = func(*parleyv1.TurnEvent, error) bool

// follower shows one turn to one caller, over as many streams as that takes.
type follower struct {
	patience

	client *Client
	opts   []grpc.CallOption

	chat         *parleyv1.ChatRequest // What asks for the turn; nil once it has started.
	ownID        bool                  // Nobody but this call has used the request_id of chat.
	conversation string                // Of the turn, once it has started.
	view         view

	after int32 // Behind which index the last ask was; 0: from the start.
	shown bool  // Something was, since the beginning.
}

// run shows the turn to its end.
func (f *follower) run(ctx context.Context, yield yielder) {
	for {
		err := f.attempt(ctx, func(ctx context.Context, silence *time.Timer) error {
			return f.read(ctx, silence, yield)
		})
		if err == nil {
			return
		}
		if f.broken = err; !f.retries(ctx) {
			yield(nil, f.broken)
			return
		}
	}
}

// read asks for the turn once and shows what is new. It returns nil when there is nothing
// more to show or the caller has left.
func (f *follower) read(ctx context.Context, silence *time.Timer, yield yielder) error {
	receive, err := f.ask(ctx)
	if err != nil {
		return err
	}
	f.met()
	for {
		silence.Reset(f.left())
		event, err := receive()
		silence.Stop()
		switch {
		case errors.Is(err, io.EOF) && !f.shown && f.after > 0:
			return nil // The caller began behind the last event.
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the stream ended before the turn: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		case !f.show(event, yield):
			return nil
		case event.GetFinished() != nil:
			// The turn is over and durable; how the line closes changes nothing. But to leave
			// before the server has ended the stream would look like a break there.
			silence.Reset(maxSilence)
			_, _ = receive()
			return nil
		}
	}
}

// ask opens the next stream.
func (f *follower) ask(ctx context.Context) (receiver, error) {
	if f.chat != nil {
		f.after = f.view.begin(0)
		return receiving(f.client.ConversationServiceClient.Chat(ctx, f.chat, f.opts...))
	}
	f.after = f.view.begin(f.view.next())
	return receiving(f.client.ConversationServiceClient.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: f.conversation, TurnId: f.view.turn, AfterIndex: f.after,
	}, f.opts...))
}

// receiver waits for the next event of a stream.
type receiver = func() (*parleyv1.TurnEvent, error)

func receiving[R any, P interface {
	*R
	GetEvent() *parleyv1.TurnEvent
}](stream grpc.ServerStreamingClient[R], err error) (receiver, error) {
	if err != nil {
		return nil, err
	}
	return func() (*parleyv1.TurnEvent, error) {
		response, err := stream.Recv()
		return P(response).GetEvent(), err
	}, nil
}

// show shows what is new of an event and reports whether the caller wants more.
func (f *follower) show(event *parleyv1.TurnEvent, yield yielder) bool {
	if event = f.view.take(event); event == nil {
		return true
	}
	if started := event.GetStarted(); started != nil && f.chat != nil {
		if f.ownID && started.GetReplayed() {
			// It is this call that asked more than once, perhaps down in gRPC.
			event = proto.CloneOf(event)
			event.GetStarted().Replayed = false
		}
		f.conversation = cmp.Or(started.GetConversation().GetId(), f.chat.GetConversationId())
		f.chat = nil
	}
	f.shown, f.news = true, true
	more := yield(event, nil)
	f.calm()
	return more
}

// retries reports whether to ask again after a stream that has broken, once it is time to.
// Else broken is the error for the caller.
func (f *follower) retries(ctx context.Context) bool {
	if Reason(f.broken) == "EVENTS_GONE" && (f.news || f.after > 0) && f.view.gone() {
		return true
	}
	return isBreak(f.broken) && f.wait(ctx)
}
