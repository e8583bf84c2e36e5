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

// statusWithReason returns a status error with an ErrorInfo, like those of the server.
func statusWithReason(code codes.Code, reason string) error {
	s, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "parley"})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

// readTurn returns the events of a turn and the error at its end. If step is not nil, readTurn calls
// it with the number of events so far before it reads the next one.
func readTurn(
	turn iter.Seq2[*parleyv1.TurnEvent, error], step func(shown int),
) (shown []*parleyv1.TurnEvent, err error) {
	for event, failure := range turn {
		if failure != nil {
			err = failure
			continue // The loop continues, so that tests detect events after the error.
		}
		shown = append(shown, event)
		if step != nil {
			step(len(shown))
		}
	}
	return shown, err
}

func hello() *parleyv1.ChatRequest { return &parleyv1.ChatRequest{Content: "hello"} }

func checkEvents(t *testing.T, want, got []*parleyv1.TurnEvent) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestChatDoesNotRetryFinalErrors(t *testing.T) {
	events := short()
	tests := []struct {
		name string
		end  error // The handler's result after it has sent the events.
		sent []*parleyv1.TurnEvent
		want codes.Code // OK means no error.
	}{
		{"no error", nil, events, codes.OK},
		{"an error after finished is ignored", status.Error(codes.Internal, "late"), events, codes.OK},
		{
			"an event of a later version", nil,
			client.Numbered("t", client.Started("c"), &parleyv1.TurnEvent{}, client.Finished()), codes.OK,
		},
		{"refused", status.Error(codes.Aborted, "busy"), nil, codes.Aborted},
		{
			"conversation deleted during the turn", statusWithReason(codes.NotFound, "CONVERSATION_NOT_FOUND"), events[:2],
			codes.NotFound,
		},
		{"internal error of the server", statusWithReason(codes.Internal, "INTERNAL"), events[:2], codes.Internal},
		{"cancelled by the server", statusWithReason(codes.Canceled, "CANCELLED"), events[:2], codes.Canceled},
		{"a limit of the server", statusWithReason(codes.ResourceExhausted, "QUEUE_FULL"), nil, codes.ResourceExhausted},
		{"a limit of gRPC", status.Error(codes.ResourceExhausted, "message too large"), events[:2], codes.ResourceExhausted},
		{"a deadline", status.Error(codes.DeadlineExceeded, "late"), events[:2], codes.DeadlineExceeded},
		{"EVENTS_GONE at the first attempt", statusWithReason(codes.OutOfRange, "EVENTS_GONE"), nil, codes.OutOfRange},
		{
			"OUT_OF_RANGE for another reason", statusWithReason(codes.OutOfRange, "SEQUENCE_GONE"), events[:2], codes.OutOfRange,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{turn: func(a *turnCall) error {
					if err := a.send(test.sent...); err != nil {
						return err
					}
					return test.end
				}}
				got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), nil)
				checkEvents(t, test.sent, got)
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

func TestTurnsFailQuicklyWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&fake{}).dialThrough(t, func(dialer) dialer {
			return func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }
		})
		for name, turn := range map[string]iter.Seq2[*parleyv1.TurnEvent, error]{
			"Chat":       c.Chat(t.Context(), hello()),
			"ResumeTurn": c.ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c"}),
		} {
			begin := time.Now()
			_, err := readTurn(turn, nil)
			if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "nothing new") {
				t.Errorf("%s: error = %v, want UNAVAILABLE of gRPC itself", name, err)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("%s: took %v, want at most 2 s", name, took)
			}
		}
	})
}

func TestInvalidAndNilRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := turnFake(0).dial(t)
		begin := time.Now()
		if _, err := readTurn(c.Chat(t.Context(), &parleyv1.ChatRequest{Content: "\xff"}), nil); status.Code(err) != codes.Internal {
			t.Errorf("error = %v, want INTERNAL", err)
		}
		if _, err := readTurn(c.Chat(t.Context(), nil), nil); err != nil {
			t.Errorf("Chat(nil) = %v, want no error", err) // The fake accepts every request.
		}
		if _, err := readTurn(c.ResumeTurn(t.Context(), nil), nil); err != nil {
			t.Errorf("ResumeTurn(nil) = %v, want no error", err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v, want less than a second", took)
		}
	})
}

func TestLeavingTheLoopEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		f := &fake{turn: func(a *turnCall) error {
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
			t.Errorf("the server noticed the end of the stream after %v, want at once", took)
		}
		if calls, _ := f.recordedCalls(); len(calls) != 1 {
			t.Errorf("server received %d calls, want 1", len(calls))
		}
	})
}

// TestChatWaitsForTheServerToEndTheStream checks that the client does not cancel the stream after
// finished. The server would see a disconnect.
func TestChatWaitsForTheServerToEndTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		f := &fake{turn: func(a *turnCall) error {
			if err := a.send(short()...); err != nil {
				return err
			}
			synctest.Wait()
			ended <- a.Context().Err()
			return nil
		}}
		if _, err := readTurn(f.dial(t).Chat(t.Context(), hello()), nil); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("after finished, the context of the handler ended: %v", err)
		}
	})
}

func TestRangingAgainSendsTheSameRequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := turnFake(0)
		answer := f.dial(t).Chat(t.Context(), hello())
		for range 2 {
			if _, err := readTurn(answer, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, ids := f.recordedCalls(); len(ids) != 2 || ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("request ids = %q, want the same id twice", ids)
		}
	})
}

// TestReplayed checks when the started event reports replayed. If Chat generated the request_id, the
// first range over the sequence never does.
func TestReplayed(t *testing.T) {
	tests := []struct {
		name, requestID string
		ranged          int
		want            []bool
	}{
		{"no id", "", 2, []bool{false, true}},
		{"an id of the caller", "mine", 1, []bool{true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{turn: func(a *turnCall) error {
					if a.nth == 0 {
						return status.Error(codes.Unavailable, "the turn may have started")
					}
					return a.send(client.Merged(short())...)
				}}
				request := hello()
				request.RequestId = test.requestID
				turn := f.dial(t).Chat(t.Context(), request)
				var got []bool
				for range test.ranged {
					shown, err := readTurn(turn, nil)
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
