package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

const (
	// giveUpAfter limits the time without a new message over all attempts. The server sends
	// something at least every 15 s. The time that the caller's loop takes does not count.
	giveUpAfter = time.Minute
	// maxSilence is the time without a message after which a stream counts as broken although
	// its connection works: three messages of the server are then missing. It leaves time for
	// another attempt before giveUpAfter. Dead connections are detected sooner; see Dial.
	maxSilence = 45 * time.Second
	// The delay before the next attempt doubles from firstDelay to maxDelay until there is a new
	// message. gRPC itself may send each attempt up to five times.
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second
)

var errSilent = status.Error(codes.Unavailable, "the stream has been silent for too long")

// retry decides when a call that resumes over many streams opens the next one, and when it gives
// up. The zero value with conn set is ready for the first attempt.
type retry struct {
	conn *grpc.ClientConn

	signIn    *tokenUse // The token of the newest stream.
	replaced  bool      // The newest stream was opened because another token has replaced a refused one.
	connected bool      // A stream was opened, so the server may have been reached.
	progress  bool      // A new message has arrived since the last attempt began.
	err       error     // The error that ended the previous stream; nil if there was none.
	deadline  time.Time // The call gives up at this time; set once connected.
	delay     time.Duration
}

// resetDeadline restarts the time limit and the delay, because there is a new message.
func (r *retry) resetDeadline() {
	r.deadline, r.delay = time.Now().Add(giveUpAfter), firstDelay
	r.replaced = false
}

// receiveTimeout returns how long to wait for the next message of a stream.
func (r *retry) receiveTimeout() time.Duration {
	if !r.connected {
		return math.MaxInt64 // gRPC itself detects that there is no server.
	}
	return min(maxSilence, time.Until(r.deadline))
}

// noteConnected records that a stream was opened.
func (r *retry) noteConnected() {
	if !r.connected {
		r.connected = true
		r.resetDeadline()
	}
}

// attempt runs read, which opens one stream and reads it to its end. The timer cancels the context
// of read: read resets it to receiveTimeout before it waits for a message, and stops it after.
// attempt returns nil if read returns nil, and otherwise the error that ended the stream.
func (r *retry) attempt(ctx context.Context, read func(context.Context, *time.Timer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, r.signIn = withTokenUse(ctx)
	silence := time.AfterFunc(r.receiveTimeout(), func() { cancel(errSilent) })
	defer silence.Stop()
	r.progress = false
	err := read(ctx, silence)
	switch {
	case err == nil, !errors.Is(context.Cause(ctx), errSilent):
		return err
	case !r.progress && isResumable(r.err):
		return r.err // The error of the previous stream is more specific than errSilent.
	default:
		return errSilent
	}
}

// next returns true when it is time for the next attempt after a stream that ended with r.err. If it returns false,
// r.err is the error for the caller.
func (r *retry) next(ctx context.Context) bool {
	if status.Code(r.err) == codes.Unauthenticated {
		return r.signInAgain(ctx)
	}
	return isResumable(r.err) && r.wait(ctx)
}

// signInAgain reports whether the next attempt can begin at once with another token, because the server has refused
// the token of the last stream, or has ended the stream after its token expired.
func (r *retry) signInAgain(ctx context.Context) bool {
	if r.replaced {
		return false // The new token is not valid either.
	}
	replaced, err := r.signIn.replaced(ctx, true)
	if err != nil {
		r.err = fmt.Errorf("%w; %w", r.err, err)
	}
	r.replaced = replaced
	return replaced
}

// wait returns true when it is time for the next attempt. If it returns false, r.err is the error
// for the caller.
func (r *retry) wait(ctx context.Context) bool {
	if !r.connected || r.conn.GetState() == connectivity.Shutdown {
		return false
	}
	delay := time.Duration(float64(r.delay) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // G404: not a secret
	if time.Until(r.deadline) < delay {
		r.err = fmt.Errorf("nothing new for %v: %w", giveUpAfter, r.err)
		return false
	}
	r.delay = min(2*r.delay, maxDelay)
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		r.err = status.FromContextError(ctx.Err()).Err()
		return false
	}
}

// isResumable reports whether a call may resume after a stream that ended with err. That is so if
// the connection broke, the server restarts, a proxy reset the stream, or the caller was too slow.
func isResumable(err error) bool {
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
