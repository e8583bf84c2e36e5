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

func TestWatchDoesNotRetryFinalErrors(t *testing.T) {
	full := statusWithReason(codes.ResourceExhausted, "TOO_MANY_WATCHERS")
	tests := []struct {
		name string
		sent []*parleyv1.ConversationChange
		end  error
		want codes.Code
	}{
		{"refused", nil, statusWithReason(codes.InvalidArgument, "INVALID_REQUEST"), codes.InvalidArgument},
		{"too many watchers at the first attempt", nil, full, codes.ResourceExhausted},
		{"not in this version of the server", nil, status.Error(codes.Unimplemented, "no such call"), codes.Unimplemented},
		{"internal error of the server", messageChanges(2), statusWithReason(codes.Internal, "INTERNAL"), codes.Internal},
		{"no longer signed in", messageChanges(2), status.Error(codes.Unauthenticated, "expired"), codes.Unauthenticated},
		{
			"a limit of gRPC", messageChanges(2), status.Error(codes.ResourceExhausted, "message too large"),
			codes.ResourceExhausted,
		},
		{"a deadline", messageChanges(2), status.Error(codes.DeadlineExceeded, "late"), codes.DeadlineExceeded},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := watchFake(func(w *watchCall) error { return errors.Join(w.send(test.sent...), test.end) })
				got, err := readChanges(f.dial(t).WatchConversations(t.Context(), nil), untilPosition(9))
				if diff := cmp.Diff(test.sent, got, protocmp.Transform()); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
				if status.Code(err) != test.want {
					t.Errorf("error = %v, want %v", err, test.want)
				}
				if calls, _ := f.recordedCalls(); len(calls) != 1 {
					t.Errorf("server received %d calls, want 1", len(calls))
				}
			})
		})
	}
}

func TestWatchFailsQuicklyWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unreachable atomic.Bool
		unreachable.Store(true)
		c := watchFake((*watchCall).hang).dialUntil(t, &unreachable)
		begin := time.Now()
		_, err := readChanges(c.WatchConversations(t.Context(), watchRequest()), untilPosition(1))
		if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "nothing new") {
			t.Errorf("error = %v, want UNAVAILABLE of gRPC itself", err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("took %v, want at most 2 s", took)
		}
	})
}

func TestWatchGivesUp(t *testing.T) {
	tests := []struct {
		name        string
		unreachable bool // The server cannot be reached after the first stream.
		answer      func(*watchCall) error
		code        codes.Code
		reason      string
	}{
		{"no server", true, nil, codes.Unavailable, ""},
		{
			"a server that is always shutting down", false,
			func(*watchCall) error {
				return statusWithReason(codes.Unavailable, "SHUTTING_DOWN")
			}, codes.Unavailable, "SHUTTING_DOWN",
		},
		{
			"a server that has reached its limit", false,
			func(*watchCall) error {
				return statusWithReason(codes.ResourceExhausted, "TOO_MANY_WATCHERS")
			}, codes.ResourceExhausted, "TOO_MANY_WATCHERS",
		},
		{"streams without changes", false, func(*watchCall) error { return nil }, codes.Unknown, ""},
		{"streams that hang", false, (*watchCall).hang, codes.Unavailable, ""},
		{
			"a server that shuts down, answers, then hangs", false,
			func(w *watchCall) error {
				switch {
				case w.nth <= 5: // The number of attempts of gRPC itself.
					return statusWithReason(codes.Unavailable, "SHUTTING_DOWN")
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
				var unreachable atomic.Bool
				f := watchFake(func(w *watchCall) error {
					if w.nth > 0 {
						return test.answer(w)
					}
					return errors.Join(w.send(heartbeat(0)), w.hang())
				})
				c := f.dialUntil(t, &unreachable)
				begin := time.Now()
				cut := sync.OnceFunc(f.breakConnections)
				got, err := readChanges(c.WatchConversations(t.Context(), watchRequest()), func(*parleyv1.ConversationChange) bool {
					unreachable.Store(test.unreachable)
					cut()
					begin = time.Now() // The minute begins with the last change.
					return true
				})
				if len(got) == 0 || status.Code(err) != test.code || client.Reason(err) != test.reason {
					t.Errorf("%d changes, error = %v; want at least one change, %v %q", len(got), err, test.code, test.reason)
				}
				if test.code == codes.Unknown && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("error = %v, want io.ErrUnexpectedEOF", err)
				}
				if took := time.Since(begin); took < 57*time.Second || took > time.Minute {
					t.Errorf("gave up after %v, want between 57 s and 1 min", took)
				}
			})
		})
	}
}

// TestWatchRetriesABrokenServerSlowly checks that a watch does not give up on a server that answers, but
// retries slowly if the server breaks each stream.
func TestWatchRetriesABrokenServerSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := watchFake(func(w *watchCall) error {
			return errors.Join(w.send(gap(w.nth), heartbeat(w.nth)), status.Error(codes.Internal, "RST_STREAM"))
		})
		begin := time.Now()
		got, err := readChanges(f.dial(t).WatchConversations(t.Context(), watchRequest()), func(*parleyv1.ConversationChange) bool {
			return time.Since(begin) < 10*time.Minute
		})
		if err != nil {
			t.Error(err)
		}
		if calls, _ := f.recordedCalls(); len(calls) > 400 || len(got) < 400 {
			t.Errorf("server received %d calls, %d changes; want one call every two seconds with two changes each", len(calls),
				len(got))
		}
	})
}

// TestWatchReplacesASilentStream checks that a watch opens a new stream when three heartbeats are
// missing, because a proxy has lost the stream.
func TestWatchReplacesASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := watchFake(func(w *watchCall) error {
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
		got, err := readChanges(f.dial(t).WatchConversations(t.Context(), watchRequest()), untilPosition(1))
		if err != nil || len(got) != 6 {
			t.Errorf("%d changes, error = %v; want 6", len(got), err)
		}
		if took := time.Since(begin) - 4*44*time.Second; took < 45*time.Second || took > 46*time.Second {
			t.Errorf("the silent stream was replaced after %v, want 45 s", took)
		}
	})
}

func TestASlowWatchLoopDoesNotCountAsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := watchFake(func(w *watchCall) error {
			if err := w.send(messageChanges(2)...); err != nil {
				return err
			}
			<-time.After(10*time.Minute + 10*time.Second)
			return errors.Join(w.send(gap(3)), w.hang())
		})
		_, err := readChanges(f.dial(t).WatchConversations(t.Context(), watchRequest()), func(change *parleyv1.ConversationChange) bool {
			<-time.After(5 * time.Minute)
			return untilPosition(3)(change)
		})
		if err != nil {
			t.Error(err)
		}
		if calls, _ := f.recordedCalls(); len(calls) != 1 {
			t.Errorf("server received %d calls, want 1", len(calls))
		}
	})
}

func TestLeavingTheLoopEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{}, 2)
		f := watchFake(func(w *watchCall) error {
			defer func() { left <- struct{}{} }()
			return errors.Join(w.send(heartbeat(w.position()), gap(w.position()+1)), w.hang())
		})
		changes := f.dial(t).WatchConversations(t.Context(), watchRequest())
		for range 2 { // A second range begins the watch again.
			got, err := readChanges(changes, untilPosition(1))
			begin := time.Now()
			<-left
			if err != nil || len(got) != 2 || time.Since(begin) > time.Second {
				t.Errorf("%d changes, error = %v, the server noticed the end after %v; want 2 changes, at once", len(got), err,
					time.Since(begin))
			}
		}
	})
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	for name, answer := range map[string]func(*watchCall) error{
		"during a stream":  (*watchCall).hang,
		"between attempts": func(*watchCall) error { return status.Error(codes.Internal, "RST_STREAM") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := watchFake(func(w *watchCall) error { return errors.Join(w.send(heartbeat(0)), answer(w)) })
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begin := time.Now()
				_, err := readChanges(f.dial(t).WatchConversations(ctx, watchRequest()), untilPosition(1))
				if status.Code(err) != codes.DeadlineExceeded || time.Since(begin) != 10*time.Second {
					t.Errorf("error = %v after %v, want DEADLINE_EXCEEDED after 10 s", err, time.Since(begin))
				}
			})
		})
	}
}

func TestCloseEndsAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := watchFake(func(w *watchCall) error { return errors.Join(w.send(heartbeat(0)), w.hang()) })
		c := f.dial(t)
		begin := time.Now()
		_, err := readChanges(c.WatchConversations(t.Context(), watchRequest()), func(*parleyv1.ConversationChange) bool {
			c.Close()
			return true
		})
		if status.Code(err) != codes.Canceled || time.Since(begin) > time.Second {
			t.Errorf("error = %v after %v, want CANCELED at once", err, time.Since(begin))
		}
	})
}

func TestGeneratedWatchIsAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := watchFake(func(w *watchCall) error { return w.send(heartbeat(7)) })
		stream, err := f.dial(t).ConversationServiceClient.WatchConversations(t.Context(), watchRequest())
		if err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil || cursorPosition(response.GetChange()) != 7 {
			t.Errorf("Recv() = %v, %v; want the heartbeat", response, err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("Recv() after the end = %v, want io.EOF", err)
		}
	})
}
