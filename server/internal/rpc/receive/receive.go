// Package receive bounds the memory of requests that have not arrived completely.
//
// gRPC keeps the part of a request that has arrived, up to 4 MiB for each call, and has no limit on how long the
// rest may take. A [Limiter] bounds how many calls receive at the same time. Other calls wait: gRPC then accepts
// only the first 64 KiB of their requests. A server needs [Tap], which makes it possible to end a receive.
package receive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/tap"
)

const (
	// MaxTime is the time that a client has to send a request.
	MaxTime = time.Minute
	// MinTime is that time while other calls wait.
	MinTime = time.Second
	// MaxWait is how long a call waits until others have received their requests.
	MaxWait = 30 * time.Second

	// checkInterval is the time between two checks of a waiting call whether others have had MinTime.
	checkInterval = MinTime / 4
)

// Errors that end a call.
var (
	// ErrSlow means that the client did not send its request in time. It wraps [context.DeadlineExceeded]: gRPC has
	// sent DEADLINE_EXCEEDED before Receive returns.
	ErrSlow = fmt.Errorf("client does not send its request: %w", context.DeadlineExceeded)
	// ErrTooMany means that a call waited in vain until others have received their requests.
	ErrTooMany = errors.New("too many requests arrive slowly")
)

// Tap is a [tap.ServerInHandle]. It adds to the context of a call what a Limiter needs to end a receive. It runs
// under a lock of the connection, so it does nothing else. It refuses nothing: gRPC would then keep the timer of the
// call until the deadline that the client has set.
func Tap(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, cancel := context.WithCancel(ctx) // gRPC cancels the parent at the end of the call.
	return &callContext{Context: ctx, cancel: cancel}, nil
}

// callContext is the context of a call that can be ended while it receives.
type callContext struct {
	context.Context
	cancel context.CancelFunc
	slow   atomic.Bool // set before cancel is called
}

// Err returns why the context has ended. gRPC makes the status of the call from it.
func (c *callContext) Err() error {
	if c.slow.Load() {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// callKey is the context key of the callContext itself.
type callKey struct{}

// Value returns the value of a key.
func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Limiter bounds how many calls receive a request at the same time. Create it with New. Its methods may be called
// from many goroutines.
type Limiter struct {
	slots []slot
	free  chan *slot
}

// New returns a limiter of that many calls.
func New(calls int) *Limiter {
	l := &Limiter{slots: make([]slot, calls), free: make(chan *slot, calls)}
	for i := range l.slots {
		l.free <- &l.slots[i]
	}
	return l
}

// Receive calls receive, which receives the request of a call with the context ctx. It returns ErrSlow if that takes
// too long, and ErrTooMany if too many other calls receive. Calls of a server without Tap have no limit: their
// clients are in the same process and have complete requests.
func (l *Limiter) Receive(ctx context.Context, receive func() error) (err error) {
	call, ok := ctx.Value(callKey{}).(*callContext)
	if !ok {
		return receive()
	}
	s, err := l.acquire(ctx)
	if err != nil {
		return err
	}
	s.begin(call)
	defer func() {
		if ended := s.finish(); ended {
			err = ErrSlow
		}
		l.free <- s
	}()
	return receive()
}

// acquire returns a free slot.
func (l *Limiter) acquire(ctx context.Context) (*slot, error) {
	select {
	case s := <-l.free:
		return s, nil
	default:
		return l.wait(ctx)
	}
}

// wait waits for a free slot. While it waits, it ends the receives that have had MinTime.
func (l *Limiter) wait(ctx context.Context) (*slot, error) {
	late, check := time.NewTimer(MaxWait), time.NewTicker(checkInterval)
	defer late.Stop()
	defer check.Stop()
	for {
		select {
		case s := <-l.free:
			return s, nil
		case <-check.C:
			for i := range l.slots {
				l.slots[i].endAfter(MinTime)
			}
		case <-late.C:
			return nil, ErrTooMany
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// slot is the right to receive a request. It is used again, so that a call allocates nothing.
type slot struct {
	mu    sync.Mutex
	call  *callContext // nil while no call receives
	start time.Time
	timer *time.Timer // of MaxTime
}

func (s *slot) begin(call *callContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call, s.start = call, time.Now()
	if s.timer == nil {
		s.timer = time.AfterFunc(MaxTime, func() { s.endAfter(MaxTime) })
	} else {
		s.timer.Reset(MaxTime)
	}
}

// finish ends the use of the slot. It reports whether endAfter ended the receive.
func (s *slot) finish() (ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	ended = s.call.slow.Load()
	s.call = nil
	return ended
}

// endAfter ends the receive of the slot if it has lasted for a time.
func (s *slot) endAfter(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.call != nil && time.Since(s.start) >= after { // A timer that fires late may find the next call.
		s.call.slow.Store(true)
		s.call.cancel()
	}
}
