package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

var errRefused = errors.New("connection refused")

// dialUntil returns a client whose connections to f are refused while unreachable is true.
func (f *fake) dialUntil(t *testing.T, unreachable *atomic.Bool) *client.Client {
	t.Helper()
	return f.dialThrough(t, func(connect dialer) dialer {
		return func(ctx context.Context, address string) (net.Conn, error) {
			if unreachable.Load() {
				return nil, errRefused
			}
			return connect(ctx, address)
		}
	})
}

func TestChatGivesUp(t *testing.T) {
	tests := []struct {
		name        string
		unreachable bool // The server cannot be reached after the first stream.
		answer      func(*turnCall) error
		code        codes.Code
		reason      string
	}{
		{"no server", true, nil, codes.Unavailable, ""},
		{
			"a server that is always shutting down", false,
			func(*turnCall) error {
				return statusWithReason(codes.Unavailable, "SHUTTING_DOWN")
			}, codes.Unavailable, "SHUTTING_DOWN",
		},
		{"streams without events", false, func(*turnCall) error { return nil }, codes.Unknown, ""},
		{
			"a server that shuts down, then hangs", false,
			func(a *turnCall) error {
				if a.nth > 20 {
					return a.hang()
				}
				return statusWithReason(codes.Unavailable, "SHUTTING_DOWN")
			},
			codes.Unavailable, "SHUTTING_DOWN",
		},
		{"streams that hang", false, (*turnCall).hang, codes.Unavailable, ""},
		{
			"streams that repeat known events", false,
			func(a *turnCall) error {
				return errors.Join(a.send(short()[:2]...), status.Error(codes.Internal, "RST_STREAM"))
			},
			codes.Internal, "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var unreachable atomic.Bool
				f := &fake{turn: func(a *turnCall) error {
					if a.nth > 0 {
						return test.answer(a)
					}
					if err := a.send(short()[:2]...); err != nil {
						return err
					}
					return a.hang()
				}}
				c := f.dialUntil(t, &unreachable)
				begin := time.Now()
				got, err := readTurn(c.Chat(t.Context(), hello()), func(shown int) {
					if shown == 2 {
						unreachable.Store(test.unreachable)
						f.breakConnections()
					}
				})
				checkEvents(t, short()[:2], got)
				if status.Code(err) != test.code || client.Reason(err) != test.reason {
					t.Errorf("error = %v, want %v %q", err, test.code, test.reason)
				}
				if test.code == codes.Unknown && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("error = %v, want io.ErrUnexpectedEOF", err)
				}
				if took := time.Since(begin); took < 57*time.Second || took > time.Minute {
					t.Errorf("gave up after %v, want between 57 s and 1 min", took)
				}
				if calls, _ := f.recordedCalls(); len(calls) > 150 {
					t.Errorf("server received %d calls, want at most 150: five attempts of gRPC every two seconds", len(calls))
				}
			})
		})
	}
}

// TestNewEventsRestartTheTimeLimit checks that each new event restarts the time limit of one minute.
func TestNewEventsRestartTheTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := long()
		var downUntil time.Time
		f := &fake{}
		f.turn = func(a *turnCall) error {
			if time.Now().Before(downUntil) {
				return statusWithReason(codes.Unavailable, "SHUTTING_DOWN")
			}
			if err := a.send(events[a.resume.GetAfterIndex()]); err != nil {
				return err
			}
			downUntil = time.Now().Add(50 * time.Second)
			return status.Error(codes.Unavailable, "broken")
		}
		got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), nil)
		if err != nil {
			t.Error(err)
		}
		checkEvents(t, events, got)
	})
}

// TestChatReplacesASilentStream checks that Chat opens a new stream if the connection works, but a proxy
// has lost the stream.
func TestChatReplacesASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turn: func(a *turnCall) error {
			if a.nth > 0 {
				return a.sendRest(long())
			}
			if err := a.send(long()[:5]...); err != nil {
				return err
			}
			return a.hang()
		}}
		begin := time.Now()
		got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), nil)
		if err != nil {
			t.Error(err)
		}
		checkEvents(t, long(), got)
		if took := time.Since(begin); took < 45*time.Second || took > 46*time.Second {
			t.Errorf("the silent stream was replaced after %v, want 45 s", took)
		}
	})
}

func TestASlowLoopDoesNotCountAsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turn: func(a *turnCall) error {
			for _, event := range long() {
				if err := a.send(event); err != nil {
					return err
				}
				<-time.After(15 * time.Second)
			}
			return nil
		}}
		got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), func(shown int) {
			if shown == 3 {
				<-time.After(2 * time.Minute)
			}
		})
		if err != nil {
			t.Error(err)
		}
		checkEvents(t, long(), got)
		if calls, _ := f.recordedCalls(); len(calls) != 1 {
			t.Errorf("server received %d calls, want 1", len(calls))
		}
	})
}

// TestCallsAfterAnOutage checks that a call succeeds 1.3 s after the server is back, even after an outage of a minute.
// The call is never retried.
func TestCallsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unreachable atomic.Bool
		unreachable.Store(true)
		c := turnFake(0).dialUntil(t, &unreachable)
		for range 60 {
			<-time.After(time.Second)
			if err := getConversation(t.Context(), c); status.Code(err) != codes.Unavailable {
				t.Fatalf("GetConversation during the outage = %v, want UNAVAILABLE", err)
			}
		}
		unreachable.Store(false)
		<-time.After(1300 * time.Millisecond)
		_, err := c.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{})
		if status.Code(err) == codes.Unavailable {
			t.Errorf("UpdateConversation 1.3 s after the outage = %v, want the reply of the server", err)
		}
	})
}

func TestChatWithWaitForReadyWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unreachable atomic.Bool
		unreachable.Store(true)
		c := turnFake(0).dialUntil(t, &unreachable)
		time.AfterFunc(5*time.Minute, func() { unreachable.Store(false) })
		got, err := readTurn(c.Chat(t.Context(), hello(), grpc.WaitForReady(true)), nil)
		if err != nil {
			t.Error(err)
		}
		checkEvents(t, short(), got)
	})
}

func TestChatEndsWithItsContext(t *testing.T) {
	tests := map[codes.Code]func(context.Context) (context.Context, context.CancelFunc){
		codes.DeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		},
		codes.Canceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Second, cancel)
			return ctx, cancel
		},
	}
	for want, limit := range tests {
		t.Run(want.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{turn: func(a *turnCall) error {
					if err := a.send(short()[0]); err != nil {
						return err
					}
					return status.Error(codes.Internal, "RST_STREAM")
				}}
				begin := time.Now()
				ctx, cancel := limit(t.Context())
				defer cancel()
				_, err := readTurn(f.dial(t).Chat(ctx, hello()), nil)
				if status.Code(err) != want {
					t.Errorf("error = %v, want %v", err, want)
				}
				if took := time.Since(begin); took != 10*time.Second {
					t.Errorf("ended after %v, want 10 s", took)
				}
			})
		})
	}
}

func TestCloseEndsChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turn: func(a *turnCall) error {
			if err := a.send(short()[0]); err != nil {
				return err
			}
			return a.hang()
		}}
		c := f.dial(t)
		begin := time.Now()
		_, err := readTurn(c.Chat(t.Context(), hello()), func(int) { c.Close() })
		if status.Code(err) != codes.Canceled {
			t.Errorf("error = %v, want CANCELED", err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v, want less than a second", took)
		}
	})
}
