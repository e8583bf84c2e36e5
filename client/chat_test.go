package client_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

type chatStream = grpc.ServerStreamingServer[parleyv1.ChatResponse]

func TestChatYieldsEventsThenOneError(t *testing.T) {
	tests := []struct {
		name string
		end  error // What the server's handler returns after its events.
		sent []*parleyv1.TurnEvent
		want error // Compared by code; nil: none.
	}{
		{"whole", nil, []*parleyv1.TurnEvent{started(), text("hi"), finished()}, nil},
		{"a failure after finished says nothing", status.Error(codes.Internal, "late"), []*parleyv1.TurnEvent{started(), finished()}, nil},
		{"refused", status.Error(codes.Aborted, "busy"), nil, status.Error(codes.Aborted, "")},
		{"broken in the middle", status.Error(codes.NotFound, "deleted"), []*parleyv1.TurnEvent{started(), text("h")}, status.Error(codes.NotFound, "")},
		{"broken and unavailable, not sent again", status.Error(codes.Unavailable, "closing"), []*parleyv1.TurnEvent{started()}, status.Error(codes.Unavailable, "")},
		{"ended without finished", nil, []*parleyv1.TurnEvent{started(), text("h")}, io.ErrUnexpectedEOF},
		{"an event of a later version", nil, []*parleyv1.TurnEvent{started(), {Index: 2}, finished()}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{chat: func(_ *parleyv1.ChatRequest, stream chatStream) error {
					return errors.Join(send(stream, test.sent...), test.end)
				}}
				var got []*parleyv1.TurnEvent
				var failures []error
				for event, err := range f.dial(t).Chat(t.Context(), &parleyv1.ChatRequest{Content: "hello"}) {
					if err != nil {
						failures = append(failures, err)
						continue
					}
					got = append(got, event)
				}
				if diff := cmp.Diff(test.sent, got, protocmp.Transform()); diff != "" {
					t.Errorf("events (-sent +got):\n%s", diff)
				}
				switch {
				case test.want == nil && len(failures) > 0, test.want != nil && len(failures) != 1:
					t.Errorf("errors = %v, want %v", failures, test.want)
				case errors.Is(test.want, io.ErrUnexpectedEOF) && !errors.Is(failures[0], io.ErrUnexpectedEOF):
					t.Errorf("error = %v, want %v", failures[0], test.want)
				case test.want != nil && status.Code(failures[0]) != status.Code(test.want):
					t.Errorf("error = %v, want %v", failures[0], test.want)
				}
				if calls, _ := f.seen(); len(calls) != 1 {
					t.Errorf("sent %d times, want once", len(calls))
				}
			})
		})
	}
}

func TestLeavingTheLoopEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		f := &fake{chat: func(_ *parleyv1.ChatRequest, stream chatStream) error {
			if err := send(stream, started()); err != nil {
				return err
			}
			<-stream.Context().Done()
			close(left)
			return stream.Context().Err()
		}}
		for event, err := range f.dial(t).Chat(t.Context(), &parleyv1.ChatRequest{Content: "hello"}) {
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
	})
}

func TestRangingAgainAsksForTheSameTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := answering(0)
		answer := f.dial(t).Chat(t.Context(), &parleyv1.ChatRequest{Content: "hello"})
		for range 2 {
			for _, err := range answer {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, ids := f.seen(); len(ids) != 2 || ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("request ids = %q, want one, twice", ids)
		}
	})
}
