package client_test

import (
	"context"
	"iter"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// refused is a status with a reason, as the server gives it.
func refused(code codes.Code, reason string) error {
	s, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "parley"})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

// watch reads a turn to its end and calls step before each event is handed on.
func watch(turn iter.Seq2[*parleyv1.TurnEvent, error], step func(shown int)) (shown []*parleyv1.TurnEvent, err error) {
	for event, failure := range turn {
		if failure != nil {
			err = failure
			continue // That there is nothing behind it is for the tests to see.
		}
		shown = append(shown, event)
		if step != nil {
			step(len(shown))
		}
	}
	return shown, err
}

func hello() *parleyv1.ChatRequest { return &parleyv1.ChatRequest{Content: "hello"} }

func expect(t *testing.T, want, got []*parleyv1.TurnEvent) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestWhatIsFinal(t *testing.T) {
	events := short()
	tests := []struct {
		name string
		end  error // What the server's handler returns after its events.
		sent []*parleyv1.TurnEvent
		want codes.Code // OK: no error.
	}{
		{"nothing wrong", nil, events, codes.OK},
		{"a failure after finished says nothing", status.Error(codes.Internal, "late"), events, codes.OK},
		{"an event of a later version", nil, client.Numbered("t", client.Started("c"), &parleyv1.TurnEvent{}, client.Finished()), codes.OK},
		{"refused", status.Error(codes.Aborted, "busy"), nil, codes.Aborted},
		{"deleted in the middle", refused(codes.NotFound, "CONVERSATION_NOT_FOUND"), events[:2], codes.NotFound},
		{"a fault of the server", refused(codes.Internal, "INTERNAL"), events[:2], codes.Internal},
		{"taken for cancelled by the server", refused(codes.Canceled, "CANCELLED"), events[:2], codes.Canceled},
		{"a limit", refused(codes.ResourceExhausted, "QUEUE_FULL"), nil, codes.ResourceExhausted},
		{"a limit of gRPC's", status.Error(codes.ResourceExhausted, "message too large"), events[:2], codes.ResourceExhausted},
		{"a deadline", status.Error(codes.DeadlineExceeded, "late"), events[:2], codes.DeadlineExceeded},
		{"nothing is kept, from the start on", refused(codes.OutOfRange, "EVENTS_GONE"), nil, codes.OutOfRange},
		{"beyond another range", refused(codes.OutOfRange, "SEQUENCE_GONE"), events[:2], codes.OutOfRange},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{turn: func(a *asked) error {
					if err := a.send(test.sent...); err != nil {
						return err
					}
					return test.end
				}}
				got, err := watch(f.dial(t).Chat(t.Context(), hello()), nil)
				expect(t, test.sent, got)
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

func TestNoServerAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&fake{}).dialThrough(t, func(dialer) dialer {
			return func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }
		})
		for name, turn := range map[string]iter.Seq2[*parleyv1.TurnEvent, error]{
			"Chat":       c.Chat(t.Context(), hello()),
			"ResumeTurn": c.ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c"}),
		} {
			begin := time.Now()
			_, err := watch(turn, nil)
			if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "nothing new") {
				t.Errorf("%s: error = %v, want gRPC's own UNAVAILABLE", name, err)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("%s: took %v, want 2 s at most", name, took)
			}
		}
	})
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := answering(0).dial(t)
		begin := time.Now()
		if _, err := watch(c.Chat(t.Context(), &parleyv1.ChatRequest{Content: "\xff"}), nil); status.Code(err) != codes.Internal {
			t.Errorf("error = %v, want INTERNAL", err)
		}
		if _, err := watch(c.Chat(t.Context(), nil), nil); err != nil {
			t.Errorf("no request: %v", err) // The fake checks nothing.
		}
		if _, err := watch(c.ResumeTurn(t.Context(), nil), nil); err != nil {
			t.Errorf("no request: %v", err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v, want less than a second", took)
		}
	})
}

func TestLeavingTheLoopEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		f := &fake{turn: func(a *asked) error {
			if err := a.send(short()[0]); err != nil {
				return err
			}
			defer close(left)
			return a.hang()
		}}
		for event, err := range f.dial(t).Chat(t.Context(), hello()) {
			if err != nil || event.GetStarted() == nil {
				t.Fatalf("event = %v, error = %v, want started", event, err)
			}
			break
		}
		begin := time.Now()
		<-left
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the server was told after %v, want at once", took)
		}
		if calls, _ := f.seen(); len(calls) != 1 {
			t.Errorf("asked %d times, want once", len(calls))
		}
	})
}

// A stream that the client left would look like a break to the server.
func TestTheServerEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		f := &fake{turn: func(a *asked) error {
			if err := a.send(short()...); err != nil {
				return err
			}
			synctest.Wait()
			ended <- a.Context().Err()
			return nil
		}}
		if _, err := watch(f.dial(t).Chat(t.Context(), hello()), nil); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("after finished the server saw: %v", err)
		}
	})
}

func TestRangingAgainAsksForTheSameTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := answering(0)
		answer := f.dial(t).Chat(t.Context(), hello())
		for range 2 {
			if _, err := watch(answer, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, ids := f.seen(); len(ids) != 2 || ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("request ids = %q, want one, twice", ids)
		}
	})
}

// Who asks for the first time is not told that the turn is an old one.
func TestReplayed(t *testing.T) {
	tests := []struct {
		name, requestID string
		ranged          int
		want            []bool
	}{
		{"no id", "", 2, []bool{false, true}},
		{"an id of one's own", "mine", 1, []bool{true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{turn: func(a *asked) error {
					if a.nth == 0 {
						return status.Error(codes.Unavailable, "the turn has begun, but who knows")
					}
					return a.send(client.Merged(short())...)
				}}
				request := hello()
				request.RequestId = test.requestID
				turn := f.dial(t).Chat(t.Context(), request)
				var got []bool
				for range test.ranged {
					shown, err := watch(turn, nil)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, shown[0].GetStarted().GetReplayed())
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("replayed = %v, want %v", got, test.want)
				}
			})
		})
	}
}
