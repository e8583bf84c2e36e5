package client_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestWhatEndsAWatch(t *testing.T) {
	full := refused(codes.ResourceExhausted, "TOO_MANY_WATCHERS")
	tests := []struct {
		name string
		sent []*parleyv1.ConversationChange
		end  error
		want codes.Code
	}{
		{"refused", nil, refused(codes.InvalidArgument, "INVALID_REQUEST"), codes.InvalidArgument},
		{"too many, from the start on", nil, full, codes.ResourceExhausted},
		{"not in this version", nil, status.Error(codes.Unimplemented, "no such call"), codes.Unimplemented},
		{"a fault of the server", committed(2), refused(codes.Internal, "INTERNAL"), codes.Internal},
		{"no longer signed in", committed(2), status.Error(codes.Unauthenticated, "expired"), codes.Unauthenticated},
		{"a limit of gRPC's", committed(2), status.Error(codes.ResourceExhausted, "message too large"), codes.ResourceExhausted},
		{"a deadline", committed(2), status.Error(codes.DeadlineExceeded, "late"), codes.DeadlineExceeded},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := showing(func(w *watched) error { return errors.Join(w.send(test.sent...), test.end) })
				got, err := follow(f.dial(t).WatchConversations(t.Context(), nil), upTo(9))
				if diff := cmp.Diff(test.sent, got, protocmp.Transform()); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
				if status.Code(err) != test.want {
					t.Errorf("error = %v, want %v", err, test.want)
				}
				if calls, _ := f.seen(); len(calls) != 1 {
					t.Errorf("asked %d times, want once", len(calls))
				}
			})
		})
	}
}

func TestNoServerToWatchAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		gone.Store(true)
		c := showing((*watched).hang).dialUntil(t, &gone)
		begin := time.Now()
		_, err := follow(c.WatchConversations(t.Context(), session()), upTo(1))
		if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "nothing new") {
			t.Errorf("error = %v, want gRPC's own UNAVAILABLE", err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("took %v, want 2 s at most", took)
		}
	})
}

func TestGivesUpAWatch(t *testing.T) {
	tests := []struct {
		name   string
		gone   bool // The server cannot be reached any more.
		answer func(*watched) error
		code   codes.Code
		reason string
	}{
		{"no server", true, nil, codes.Unavailable, ""},
		{
			"a server that stops and stops", false,
			func(*watched) error { return refused(codes.Unavailable, "SHUTTING_DOWN") }, codes.Unavailable, "SHUTTING_DOWN",
		},
		{
			"a server that is full meanwhile", false,
			func(*watched) error { return refused(codes.ResourceExhausted, "TOO_MANY_WATCHERS") }, codes.ResourceExhausted, "TOO_MANY_WATCHERS",
		},
		{"streams without a word", false, func(*watched) error { return nil }, codes.Unknown, ""},
		{"streams that hang", false, (*watched).hang, codes.Unavailable, ""},
		{
			"a server that stops, answers, then hangs", false,
			func(w *watched) error {
				switch {
				case w.nth <= 5: // As often as gRPC itself asks.
					return refused(codes.Unavailable, "SHUTTING_DOWN")
				case w.nth == 6:
					return errors.Join(w.send(heartbeat(0)), w.hang())
				default:
					return w.hang()
				}
			},
			codes.Unavailable, "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var gone atomic.Bool
				f := showing(func(w *watched) error {
					if w.nth > 0 {
						return test.answer(w)
					}
					return errors.Join(w.send(heartbeat(0)), w.hang())
				})
				c := f.dialUntil(t, &gone)
				begin := time.Now()
				cut := sync.OnceFunc(f.cut)
				got, err := follow(c.WatchConversations(t.Context(), session()), func(*parleyv1.ConversationChange) bool {
					gone.Store(test.gone)
					cut()
					begin = time.Now() // What counts is the last one.
					return true
				})
				if len(got) == 0 || status.Code(err) != test.code || client.Reason(err) != test.reason {
					t.Errorf("%d changes, error = %v; want some, %v %q", len(got), err, test.code, test.reason)
				}
				if test.code == codes.Unknown && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("error = %v, want io.ErrUnexpectedEOF", err)
				}
				if took := time.Since(begin); took < 57*time.Second || took > time.Minute {
					t.Errorf("gave up after %v, want a minute", took)
				}
			})
		})
	}
}

// As long as it answers, a server is asked; but one that breaks every stream is not asked all
// the time.
func TestABrokenServerIsAskedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := showing(func(w *watched) error {
			return errors.Join(w.send(gap(w.nth), heartbeat(w.nth)), status.Error(codes.Internal, "RST_STREAM"))
		})
		begin := time.Now()
		got, err := follow(f.dial(t).WatchConversations(t.Context(), session()), func(*parleyv1.ConversationChange) bool {
			return time.Since(begin) < 10*time.Minute
		})
		if err != nil {
			t.Error(err)
		}
		if calls, _ := f.seen(); len(calls) > 400 || len(got) < 400 {
			t.Errorf("asked %d times, %d changes; want an ask every two seconds, two changes for each", len(calls), len(got))
		}
	})
}

// Three heartbeats are missing: something in between has forgotten the stream.
func TestAWatchThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := showing(func(w *watched) error {
			if w.nth > 0 {
				return errors.Join(w.send(gap(1)), w.hang())
			}
			for range 4 {
				if err := w.send(heartbeat(0)); err != nil {
					return err
				}
				<-time.After(44 * time.Second)
			}
			return errors.Join(w.send(heartbeat(0)), w.hang())
		})
		begin := time.Now()
		got, err := follow(f.dial(t).WatchConversations(t.Context(), session()), upTo(1))
		if err != nil || len(got) != 6 {
			t.Errorf("%d changes, error = %v; want 6", len(got), err)
		}
		if took := time.Since(begin) - 4*44*time.Second; took < 45*time.Second || took > 46*time.Second {
			t.Errorf("the silence was borne for %v, want 45 s", took)
		}
	})
}

func TestAWatcherMayTakeItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := showing(func(w *watched) error {
			if err := w.send(committed(2)...); err != nil {
				return err
			}
			<-time.After(10*time.Minute + 10*time.Second)
			return errors.Join(w.send(gap(3)), w.hang())
		})
		_, err := follow(f.dial(t).WatchConversations(t.Context(), session()), func(change *parleyv1.ConversationChange) bool {
			<-time.After(5 * time.Minute)
			return upTo(3)(change)
		})
		if err != nil {
			t.Error(err)
		}
		if calls, _ := f.seen(); len(calls) != 1 {
			t.Errorf("asked %d times, want once", len(calls))
		}
	})
}

func TestLeavingTheLoopEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{}, 2)
		f := showing(func(w *watched) error {
			defer func() { left <- struct{}{} }()
			return errors.Join(w.send(heartbeat(w.place()), gap(w.place()+1)), w.hang())
		})
		changes := f.dial(t).WatchConversations(t.Context(), session())
		for range 2 { // To range again is to begin again.
			got, err := follow(changes, upTo(1))
			begin := time.Now()
			<-left
			if err != nil || len(got) != 2 || time.Since(begin) > time.Second {
				t.Errorf("%d changes, error = %v, the server was told after %v; want 2, at once", len(got), err, time.Since(begin))
			}
		}
	})
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	for name, answer := range map[string]func(*watched) error{
		"while it stands":        (*watched).hang,
		"while it is asked anew": func(*watched) error { return status.Error(codes.Internal, "RST_STREAM") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := showing(func(w *watched) error { return errors.Join(w.send(heartbeat(0)), answer(w)) })
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begin := time.Now()
				_, err := follow(f.dial(t).WatchConversations(ctx, session()), upTo(1))
				if status.Code(err) != codes.DeadlineExceeded || time.Since(begin) != 10*time.Second {
					t.Errorf("error = %v after %v, want DEADLINE_EXCEEDED after 10 s", err, time.Since(begin))
				}
			})
		})
	}
}

func TestCloseEndsAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := showing(func(w *watched) error { return errors.Join(w.send(heartbeat(0)), w.hang()) })
		c := f.dial(t)
		begin := time.Now()
		_, err := follow(c.WatchConversations(t.Context(), session()), func(*parleyv1.ConversationChange) bool {
			c.Close()
			return true
		})
		if status.Code(err) != codes.Canceled || time.Since(begin) > time.Second {
			t.Errorf("error = %v after %v, want CANCELED at once", err, time.Since(begin))
		}
	})
}

func TestTheGeneratedWatchIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := showing(func(w *watched) error { return w.send(heartbeat(7)) })
		stream, err := f.dial(t).ConversationServiceClient.WatchConversations(t.Context(), session())
		if err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil || placeOf(response.GetChange()) != 7 {
			t.Errorf("%v, error = %v; want the heartbeat", response, err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("error = %v, want the end", err)
		}
	})
}
