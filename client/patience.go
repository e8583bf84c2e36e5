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
	// giveUpAfter is how long is asked in a row without anything new: the server sends
	// something every 15 s at least. What the caller does in its loop does not count.
	giveUpAfter = time.Minute
	// maxSilence of a stream, after which it counts as broken, though the connection is well:
	// three of those are missing. It leaves time to ask once more. Dead connections are found
	// sooner, see Dial.
	maxSilence = 45 * time.Second
	// The wait before the next ask doubles from firstDelay to maxDelay until there is
	// something new. Each ask may be up to five attempts of gRPC's own.
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second
)

var errSilent = status.Error(codes.Unavailable, "the stream has been silent for too long")

// patience is how one call that goes on over many streams bears what ends them: how long it
// waits, and when it gives up.
type patience struct {
	conn *grpc.ClientConn

	connected bool  // The server may have been reached.
	news      bool  // Something new has come since the last ask.
	broken    error // What ended the stream before this one, nil if none did.
	giveUp    time.Time
	delay     time.Duration
}

// calm begins to count anew how long there has been nothing new.
func (p *patience) calm() {
	p.giveUp, p.delay = time.Now().Add(giveUpAfter), firstDelay
}

// left is how long to wait for the next message of a stream.
func (p *patience) left() time.Duration {
	if !p.connected {
		return math.MaxInt64 // gRPC knows when there is no server.
	}
	return min(maxSilence, time.Until(p.giveUp))
}

// met notes that there is a stream.
func (p *patience) met() {
	if !p.connected {
		p.connected = true
		p.calm()
	}
}

// attempt runs read, which asks once and reads the stream to its end. Its context ends with
// the timer that it is given: read starts that with what is left before it waits, and stops it
// after. attempt returns nil when read does, else what ended the stream.
func (p *patience) attempt(ctx context.Context, read func(context.Context, *time.Timer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(p.left(), func() { cancel(errSilent) })
	defer silence.Stop()
	p.news = false
	err := read(ctx, silence)
	switch {
	case err == nil, !errors.Is(context.Cause(ctx), errSilent):
		return err
	case !p.news && isBreak(p.broken):
		return p.broken // It says more.
	default:
		return errSilent
	}
}

// wait returns true when it is time to ask again. Else broken is the error for the caller.
func (p *patience) wait(ctx context.Context) bool {
	if !p.connected || p.conn.GetState() == connectivity.Shutdown {
		return false
	}
	delay := time.Duration(float64(p.delay) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // G404: not a secret
	if time.Until(p.giveUp) < delay {
		p.broken = fmt.Errorf("nothing new for %v: %w", giveUpAfter, p.broken)
		return false
	}
	p.delay = min(2*p.delay, maxDelay)
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		p.broken = status.FromContextError(ctx.Err()).Err()
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
