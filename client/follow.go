package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// giveUpAfter is how long a turn is asked for in a row without anything new: the server
	// sends an event every 15 s at least. What the caller does in its loop does not count.
	giveUpAfter = time.Minute
	// maxSilence of a stream, after which it counts as broken, though the connection is well:
	// three events are missing. It leaves time to ask once more. Dead connections are found
	// sooner, see Dial.
	maxSilence = 45 * time.Second
	// The wait before the next ask doubles from firstDelay to maxDelay until there is
	// something new. Each ask may be up to five attempts of gRPC's own.
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second
)

var errSilent = status.Error(codes.Unavailable, "the stream has been silent for too long")

// yielder takes events, or last an error; false: no more.
type yielder = func(*parleyv1.TurnEvent, error) bool

// follower shows one turn to one caller, over as many streams as that takes.
type follower struct {
	client *Client
	opts   []grpc.CallOption

	chat         *parleyv1.ChatRequest // What asks for the turn; nil once it has started.
	ownID        bool                  // Nobody but this call has used the request_id of chat.
	conversation string                // Of the turn, once it has started.
	view         view

	after     int32 // Behind which index the last ask was; 0: from the start.
	shown     bool  // Something was, since the beginning.
	news      bool  // Something was, since the last ask.
	connected bool  // The server may have been reached.
	broken    error // What ended the stream before this one, nil if none did.
	giveUp    time.Time
	delay     time.Duration
}

// run shows the turn to its end.
func (f *follower) run(ctx context.Context, yield yielder) {
	for {
		err := f.attempt(ctx, yield)
		if err == nil {
			return
		}
		if f.broken = err; !f.retries(ctx) {
			yield(nil, f.broken)
			return
		}
	}
}

// attempt asks for the turn once and shows what is new. It returns nil when there is nothing
// more to show or the caller has left, else what ended the stream.
func (f *follower) attempt(ctx context.Context, yield yielder) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(f.patience(), func() { cancel(errSilent) })
	defer silence.Stop()
	err := f.read(ctx, silence, yield)
	switch {
	case err == nil, !errors.Is(context.Cause(ctx), errSilent):
		return err
	case !f.news && isBreak(f.broken):
		return f.broken // It says more.
	default:
		return errSilent
	}
}

// calm begins to count anew how long there has been nothing new.
func (f *follower) calm() {
	f.giveUp, f.delay = time.Now().Add(giveUpAfter), firstDelay
}

// patience is how long to wait for the next event.
func (f *follower) patience() time.Duration {
	if !f.connected {
		return math.MaxInt64 // gRPC knows when there is no server.
	}
	return min(maxSilence, time.Until(f.giveUp))
}

func (f *follower) read(ctx context.Context, silence *time.Timer, yield yielder) error {
	f.news = false
	receive, err := f.ask(ctx)
	if err != nil {
		return err
	}
	if !f.connected {
		f.connected = true
		f.calm()
	}
	for {
		silence.Reset(f.patience())
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
	switch {
	case !f.connected, f.client.conn.GetState() == connectivity.Shutdown:
		return false
	case Reason(f.broken) == "EVENTS_GONE" && (f.news || f.after > 0) && f.view.gone():
		return true
	case !isBreak(f.broken):
		return false
	}
	delay := time.Duration(float64(f.delay) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // G404: not a secret
	if time.Until(f.giveUp) < delay {
		f.broken = fmt.Errorf("nothing new for %v: %w", giveUpAfter, f.broken)
		return false
	}
	f.delay = min(2*f.delay, maxDelay)
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		f.broken = status.FromContextError(ctx.Err()).Err()
		return false
	}
}

// isBreak reports whether a stream that ended so may be gone on with: the connection broke,
// the server restarts, something in between has reset the stream, or the caller was slow.
func isBreak(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted:
		return Reason(err) == "SLOW_READER"
	case codes.Internal, codes.Unknown, codes.Canceled:
		return Reason(err) == ""
	default:
		return false
	}
}
