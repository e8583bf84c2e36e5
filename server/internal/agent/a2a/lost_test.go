package a2a

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// endless works until its context ends, after a first artifact.
func endless(ctx context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
	yield(sdk.NewSubmittedTask(on, on.Message))
	yield(sdk.NewArtifactEvent(on, textPart("begin")))
	<-ctx.Done()
	yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateFailed, nil))
	return nil
}

// TestCancelledTurnCancelsTask: when a turn ends before its task, the task is cancelled.
func TestCancelledTurnCancelsTask(t *testing.T) {
	errCancelled := errors.New("the turn was cancelled")
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			for name, stop := range map[string]bool{"context": false, "consumer": true} {
				t.Run(name, func(t *testing.T) {
					s := serve(t, binding, &service{streaming: streaming, scripts: []execute{endless}})
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					got := newConversation(open(t, s)).askPieces(ctx, func(p *parleyv1.RespondResponse) bool {
						if p.GetText() == "" {
							return true
						}
						if !stop {
							cancel(errCancelled)
						}
						return !stop
					}, userMessage("q"))
					if want := map[bool]error{false: errCancelled, true: nil}[stop]; !errors.Is(got.err, want) || got.text != "begin" {
						t.Errorf("turn = %+v, want %v after the first text", got, want)
					}
					select {
					case <-s.onCancel:
					case <-time.After(testTimeout):
						t.Error("the task was not cancelled")
					}
				})
			}
		})
	}
}

// TestEndedTaskIsNotCancelled: a task that has ended, or that waits for input, is not cancelled.
func TestEndedTaskIsNotCancelled(t *testing.T) {
	for _, script := range []execute{completed("ok"), waitForTool} {
		s := serve(t, sdk.TransportProtocolJSONRPC, &service{streaming: true, scripts: []execute{script}})
		a := open(t, s)
		if got := newConversation(a).ask(t.Context(), userMessage("q")); got.err != nil {
			t.Fatal(got.err)
		}
		a.cancels.Wait()
		select {
		case id := <-s.onCancel:
			t.Errorf("task %s was cancelled", id)
		default:
		}
	}
}

// breaking cuts the connection of the first n calls for which is returns true, after some events.
type breaking struct {
	left   atomic.Int32
	events int32
	is     func(*http.Request) bool
	broke  chan struct{} // gets a value at each cut
}

func (b *breaking) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.is(r) && b.left.Add(-1) >= 0 {
			next.ServeHTTP(&cutWriter{ResponseWriter: w, left: b.events, broke: b.broke}, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// cutWriter ends the connection after some events.
type cutWriter struct {
	http.ResponseWriter

	left  int32
	broke chan struct{}
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), "data:") {
		if w.left == 0 {
			w.broke <- struct{}{}
			panic(http.ErrAbortHandler)
		}
		w.left--
	}
	return w.ResponseWriter.Write(p)
}

func (w *cutWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() } // It cannot fail.

// wrapStream does the same over gRPC.
func (b *breaking) wrapStream(stream grpc.ServerStream) grpc.ServerStream {
	if b.left.Add(-1) >= 0 {
		return &cutStream{ServerStream: stream, left: b.events, broke: b.broke}
	}
	return stream
}

type cutStream struct {
	grpc.ServerStream

	left  int32
	broke chan struct{}
}

func (s *cutStream) SendMsg(m any) error {
	if s.left == 0 {
		s.broke <- struct{}{}
		return status.Error(codes.Unavailable, "cut")
	}
	s.left--
	return s.ServerStream.SendMsg(m)
}

// TestBrokenStream: a stream that breaks is resumed. The text has no gap and nothing twice, although the task continues
// while there is no connection.
func TestBrokenStream(t *testing.T) {
	for _, binding := range bindings {
		for _, subscribe := range []bool{true, false} {
			t.Run(string(binding)+map[bool]string{true: " subscribe", false: " read"}[subscribe], func(t *testing.T) {
				cut := &breaking{events: 2, broke: make(chan struct{}, 1), is: func(r *http.Request) bool {
					return r.Header.Get("Accept") == mediaEvents
				}}
				cut.left.Store(1)
				last := make(chan struct{})
				s := &service{streaming: true, scripts: []execute{
					func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
						yield(sdk.NewSubmittedTask(on, on.Message))
						first := sdk.NewArtifactEvent(on, textPart("a"))
						yield(first)
						yield(sdk.NewArtifactUpdateEvent(on, first.Artifact.ID, textPart("b")))
						<-cut.broke
						yield(sdk.NewArtifactUpdateEvent(on, first.Artifact.ID, textPart("c")))
						if subscribe {
							<-last
						}
						yield(sdk.NewArtifactUpdateEvent(on, first.Artifact.ID, textPart("d")))
						yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, nil))
						return nil
					},
				}}
				s.wrap, s.wrapStream = cut.wrap, cut.wrapStream
				serve(t, binding, s)
				ended := false
				got := newConversation(open(t, s)).askPieces(t.Context(), func(p *parleyv1.RespondResponse) bool {
					if strings.Contains(p.GetText(), "c") && subscribe && !ended {
						ended = true
						close(last)
					}
					return true
				}, userMessage("q"))
				if got.err != nil || got.text != "abcd" {
					t.Errorf("answer = %q, %+v, want abcd", got.text, got.err)
				}
				if n := len(s.messages()); n != 1 {
					t.Errorf("the message was sent %d times, want once", n)
				}
			})
		}
	}
}

// TestLostAgent: if the remote agent does not come back, the turn fails after some attempts, with an error that may be
// retried.
func TestLostAgent(t *testing.T) {
	for _, binding := range bindings {
		s := serve(t, binding, &service{streaming: true, scripts: []execute{endless}})
		a := open(t, s)
		a.waits = waits{first: time.Millisecond, last: time.Millisecond}
		got := newConversation(a).askPieces(t.Context(), func(p *parleyv1.RespondResponse) bool {
			if p.GetText() != "" {
				if s.grpc != nil {
					s.grpc.Stop()
				}
				s.http.Config.SetKeepAlivesEnabled(false)
				s.http.Listener.Close()
				s.http.CloseClientConnections()
			}
			return true
		}, userMessage("q"))
		failure := failureOf(t, got)
		const want = "the connection to the agent was lost during its answer"
		if failure.Message != want || !failure.Retryable || got.text != "begin" {
			t.Errorf("%s: turn = %q, %+v, want a lost connection", binding, got.text, failure)
		}
	}
}

// TestSilentTask: while a remote agent without streams says that its task works, readers are notified, so that the turn
// does not treat it as hung.
func TestSilentTask(t *testing.T) {
	proceed := make(chan struct{})
	s := serve(t, sdk.TransportProtocolJSONRPC, &service{scripts: []execute{
		func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
			yield(sdk.NewSubmittedTask(on, on.Message))
			<-proceed
			yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, agentMessage(textPart("ok"))))
			return nil
		},
	}})
	a := open(t, s)
	a.waits = waits{first: time.Millisecond, last: time.Millisecond}
	notes := 0
	got := newConversation(a).askPieces(t.Context(), func(p *parleyv1.RespondResponse) bool {
		if p.GetProgress().GetText() == "the agent is still working" {
			notes++
			if notes == 3 {
				close(proceed)
			}
		}
		return true
	}, userMessage("q"))
	if got.err != nil || got.text != "ok" || notes < 3 {
		t.Errorf("turn = %+v with %d notes, want ok after 3", got, notes)
	}
}
