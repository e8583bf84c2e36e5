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
)

var errGone = errors.New("connection refused")

// dialUntil connects until the server is gone.
func (f *fake) dialUntil(t *testing.T, gone *atomic.Bool) *client.Client {
	t.Helper()
	return f.dialThrough(t, func(connect dialer) dialer {
		return func(ctx context.Context, address string) (net.Conn, error) {
			if gone.Load() {
				return nil, errGone
			}
			return connect(ctx, address)
		}
	})
}

func TestGivesUpATurn(t *testing.T) {
	tests := []struct {
		name   string
		gone   bool // The server cannot be reached any more.
		answer func(*asked) error
		code   codes.Code
		reason string
	}{
		{"no server", true, nil, codes.Unavailable, ""},
		{
			"a server that stops and stops", false,
			func(*asked) error { return refused(codes.Unavailable, "SHUTTING_DOWN") }, codes.Unavailable, "SHUTTING_DOWN",
		},
		{"streams without events", false, func(*asked) error { return nil }, codes.Unknown, ""},
		{
			"a server that stops, then hangs", false,
			func(a *asked) error {
				if a.nth > 20 {
					return a.hang()
				}
				return refused(codes.Unavailable, "SHUTTING_DOWN")
			},
			codes.Unavailable, "SHUTTING_DOWN",
		},
		{"streams that hang", false, (*asked).hang, codes.Unavailable, ""},
		{
			"streams of what is known", false,
			func(a *asked) error {
				return errors.Join(a.send(short()[:2]...), status.Error(codes.Internal, "RST_STREAM"))
			},
			codes.Internal, "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var gone atomic.Bool
				f := &fake{turn: func(a *asked) error {
					if a.nth > 0 {
						return test.answer(a)
					}
					if err := a.send(short()[:2]...); err != nil {
						return err
					}
					return a.hang()
				}}
				c := f.dialUntil(t, &gone)
				begin := time.Now()
				got, err := watch(c.Chat(t.Context(), hello()), func(shown int) {
					if shown == 2 {
						gone.Store(test.gone)
						f.cut()
					}
				})
				expect(t, short()[:2], got)
				if status.Code(err) != test.code || client.Reason(err) != test.reason {
					t.Errorf("error = %v, want %v %q", err, test.code, test.reason)
				}
				if test.code == codes.Unknown && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("error = %v, want io.ErrUnexpectedEOF", err)
				}
				if took := time.Since(begin); took < 57*time.Second || took > time.Minute {
					t.Errorf("gave up after %v, want a minute", took)
				}
				if calls, _ := f.seen(); len(calls) > 150 {
					t.Errorf("asked %d times, want no more than gRPC's five every two seconds", len(calls))
				}
			})
		})
	}
}

// Each event gives the server another minute.
func TestPatienceIsForWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := long()
		var away time.Time
		f := &fake{}
		f.turn = func(a *asked) error {
			if time.Now().Before(away) {
				return refused(codes.Unavailable, "SHUTTING_DOWN")
			}
			if err := a.send(events[a.resume.GetAfterIndex()]); err != nil {
				return err
			}
			away = time.Now().Add(50 * time.Second)
			return status.Error(codes.Unavailable, "broken")
		}
		got, err := watch(f.dial(t).Chat(t.Context(), hello()), nil)
		if err != nil {
			t.Error(err)
		}
		expect(t, events, got)
	})
}

// The connection is well, but something in between has forgotten the stream.
func TestAStreamThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turn: func(a *asked) error {
			if a.nth > 0 {
				return a.from(long())
			}
			if err := a.send(long()[:5]...); err != nil {
				return err
			}
			return a.hang()
		}}
		begin := time.Now()
		got, err := watch(f.dial(t).Chat(t.Context(), hello()), nil)
		if err != nil {
			t.Error(err)
		}
		expect(t, long(), got)
		if took := time.Since(begin); took < 45*time.Second || took > 46*time.Second {
			t.Errorf("the silence was borne for %v, want 45 s", took)
		}
	})
}

func TestTheCallerMayTakeItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turn: func(a *asked) error {
			for _, event := range long() {
				if err := a.send(event); err != nil {
					return err
				}
				<-time.After(15 * time.Second)
			}
			return nil
		}}
		got, err := watch(f.dial(t).Chat(t.Context(), hello()), func(shown int) {
			if shown == 3 {
				<-time.After(2 * time.Minute)
			}
		})
		if err != nil {
			t.Error(err)
		}
		expect(t, long(), got)
		if calls, _ := f.seen(); len(calls) != 1 {
			t.Errorf("asked %d times, want once", len(calls))
		}
	})
}

func TestTheCallerMayWaitForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		gone.Store(true)
		c := answering(0).dialUntil(t, &gone)
		time.AfterFunc(5*time.Minute, func() { gone.Store(false) })
		got, err := watch(c.Chat(t.Context(), hello(), grpc.WaitForReady(true)), nil)
		if err != nil {
			t.Error(err)
		}
		expect(t, short(), got)
	})
}

func TestTheWaitEndsWithItsContext(t *testing.T) {
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
				f := &fake{turn: func(a *asked) error {
					if err := a.send(short()[0]); err != nil {
						return err
					}
					return status.Error(codes.Internal, "RST_STREAM")
				}}
				begin := time.Now()
				ctx, cancel := limit(t.Context())
				defer cancel()
				_, err := watch(f.dial(t).Chat(ctx, hello()), nil)
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

func TestCloseEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turn: func(a *asked) error {
			if err := a.send(short()[0]); err != nil {
				return err
			}
			return a.hang()
		}}
		c := f.dial(t)
		begin := time.Now()
		_, err := watch(c.Chat(t.Context(), hello()), func(int) { c.Close() })
		if status.Code(err) != codes.Canceled {
			t.Errorf("error = %v, want CANCELED", err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v, want less than a second", took)
		}
	})
}
