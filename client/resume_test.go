package client_test

import (
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// long returns the events of a turn with all kinds of events: data between texts, notes, a tool
// result and a handover.
func long() []*parleyv1.TurnEvent {
	return client.Numbered("t",
		client.Started("c"), client.Text("Let "), client.Note(""), client.Text("me "), client.Data("d"), client.Text("see."),
		client.Call("1"), client.Result("1"), client.Next("a"), client.Text("It is "), client.Data("e"),
		client.Text("größer"),
		client.Text(" als ..."), client.Next("b"), client.Text("Done"), client.Text("."), client.Finished())
}

// sendRest sends the events after the requested index.
func (a *turnCall) sendRest(events []*parleyv1.TurnEvent) error {
	return a.send(events[a.resume.GetAfterIndex():]...)
}

// resumableErrors returns the errors that end a stream which the client then resumes. For io.EOF the
// test breaks the connection.
func resumableErrors() map[string]error {
	return map[string]error{
		"the server ends the stream": nil,
		"the server restarts":        statusWithReason(codes.Unavailable, "SHUTTING_DOWN"),
		"the caller was too slow":    statusWithReason(codes.ResourceExhausted, "SLOW_READER"),
		"a proxy is unavailable":     status.Error(codes.Unavailable, "bad gateway"),
		"a proxy resets the stream":  status.Error(codes.Internal, "RST_STREAM"),
		"a proxy cancels the stream": status.Error(codes.Canceled, "RST_STREAM"),
		"a proxy sends no trailers":  status.Error(codes.Unknown, "no trailers"),
		"the connection breaks":      io.EOF,
	}
}

// breakingFake returns a fake that answers with events but ends its first stream with end after the
// given number of them. It stores the second call in second. The caller of readTurn must pass step.
func breakingFake(events []*parleyv1.TurnEvent, after int, end error, second **turnCall) (f *fake, step func(int)) {
	f = &fake{}
	f.turn = func(a *turnCall) error {
		if a.nth > 0 {
			*second = a
			return a.sendRest(events)
		}
		if err := a.send(events[:after]...); err != nil {
			return err
		}
		if !errors.Is(end, io.EOF) {
			return end
		}
		if after == 0 {
			f.breakConnections()
		}
		return a.hang()
	}
	return f, func(shown int) {
		if shown == after && errors.Is(end, io.EOF) {
			f.breakConnections()
		}
	}
}

func TestChatResumesAfterEachEvent(t *testing.T) {
	events := long()
	for name, end := range resumableErrors() {
		t.Run(name, func(t *testing.T) {
			for k := range events {
				synctest.Test(t, func(t *testing.T) {
					var second *turnCall
					f, step := breakingFake(events, k, end, &second)
					got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), step)
					if err != nil {
						t.Fatalf("after event %d: %v", k, err)
					}
					checkEvents(t, events, got)
					_, ids := f.recordedCalls()
					if k == 0 {
						if second.chat == nil || ids[0] == "" || ids[0] != ids[1] {
							t.Errorf("before the first event: request ids = %q, want Chat with the same id twice", ids)
						}
						return
					}
					want := &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: "t", AfterIndex: int32(k)}
					if diff := cmp.Diff(want, second.resume, protocmp.Transform()); diff != "" {
						t.Errorf("after event %d: request (-want +got):\n%s", k, diff)
					}
				})
			}
		})
	}
}

func TestChatResumesAfterAConnectionReset(t *testing.T) {
	events := long()
	for k := range events {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			var second *turnCall
			f, step := breakingFake(events, k, io.EOF, &second)
			c, err := client.Dial(listen(t, f, "tcp", "127.0.0.1:0"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got, err := readTurn(c.Chat(t.Context(), hello()), step)
			if err != nil {
				t.Fatalf("after event %d: %v", k, err)
			}
			checkEvents(t, events, got)
		})
	}
}

// TestEventsGone breaks the first stream after event k, when the server no longer has the single events.
// The replay contains the first n events merged, and breaks after its event j.
func TestEventsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := long()
		var k, n, j, asks int
		f := &fake{turn: func(a *turnCall) error {
			asks++
			switch {
			case asks == 1 && k%2 == 0:
				return errors.Join(a.send(events[:k]...), status.Error(codes.Unavailable, "broken"))
			case asks == 1:
				if err := a.send(events[:k]...); err != nil {
					return err
				}
				fallthrough
			case a.resume.GetAfterIndex() > 0:
				return statusWithReason(codes.OutOfRange, "EVENTS_GONE")
			}
			replay := append(client.Merged(events[:n]), events[n:]...)
			if asks <= 3 {
				replay = replay[:min(j, len(replay))]
				n = min(n+1, len(events)) // The next replay has one more event merged.
			}
			return a.send(replay...)
		}}
		turn := f.dial(t).Chat(t.Context(), hello())
		for before := 1; before < len(events); before++ {
			for when := before; when <= len(events); when += 5 {
				for cut := 0; cut <= len(events); cut += 2 {
					k, n, j, asks = before, when, cut, 0
					got, err := readTurn(turn, nil)
					if err != nil {
						t.Fatalf("first stream of %d events, replay with %d merged, broken after %d: %v", before, when, cut, err)
					}
					if diff := cmp.Diff(client.Summary(events), client.Summary(got)); diff != "" {
						t.Fatalf("first stream of %d events, replay with %d merged, broken after %d (-want +got):\n%s", before, when, cut,
							diff)
					}
					checkIndexes(t, got)
				}
			}
		}
	})
}

// checkIndexes fails the test if the indexes of events do not increase.
func checkIndexes(t *testing.T, events []*parleyv1.TurnEvent) {
	t.Helper()
	for i, event := range events {
		if i > 0 && event.GetIndex() <= events[i-1].GetIndex() {
			t.Fatalf("index %d comes after %d", event.GetIndex(), events[i-1].GetIndex())
		}
	}
}

func TestChatAfterACrashOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := client.Numbered("t", client.Started("c"), client.Text("Once"), client.Text(" upon"), client.Text(" a ti"))
		end := client.Finished()
		end.TurnId, end.Index = "t", 1<<20
		f := &fake{}
		f.turn = func(a *turnCall) error {
			switch {
			case a.nth == 0:
				if err := a.send(events...); err != nil {
					return err
				}
				return a.hang()
			case a.resume.GetAfterIndex() > 3:
				return statusWithReason(codes.OutOfRange, "EVENTS_GONE")
			default: // The crash lost the last piece of text.
				return a.send(append(client.Merged(events[:3]), end)...)
			}
		}
		got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), func(shown int) {
			if shown == len(events) {
				f.breakConnections()
			}
		})
		if err != nil {
			t.Error(err)
		}
		checkEvents(t, append(events, end), got)
	})
}

func TestChatResumesAQueuedTurn(t *testing.T) {
	waited := client.Numbered("t1", client.Queued(2), client.Queued(1))
	kept := client.Numbered("t1", client.Queued(2), client.Queued(1), client.Started("c"), client.Text("hi"),
		client.Finished())
	requeued := client.Numbered("t2", client.Queued(3), client.Started("c"), client.Text("hi"), client.Finished())
	for name, second := range map[string][]*parleyv1.TurnEvent{"kept": kept, "lost": requeued} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.turn = func(a *turnCall) error {
					if a.nth > 0 {
						return a.send(second...)
					}
					if err := a.send(waited...); err != nil {
						return err
					}
					return a.hang()
				}
				got, err := readTurn(f.dial(t).Chat(t.Context(), hello()), func(shown int) {
					if shown == 2 {
						f.breakConnections()
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				want := kept
				if name == "lost" {
					want = slices.Concat(waited, requeued)
				}
				checkEvents(t, want, got)
				if _, ids := f.recordedCalls(); len(ids) != 2 || ids[0] != ids[1] {
					t.Errorf("request ids = %q, want the same id twice", ids)
				}
			})
		})
	}
}

func TestResumeTurnFromAnyEvent(t *testing.T) {
	events := long()
	for k := range len(events) + 1 {
		for cut := k; cut <= len(events); cut++ {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{turn: func(a *turnCall) error {
					if a.nth == 0 {
						return errors.Join(a.send(events[k:cut]...), status.Error(codes.Internal, "RST_STREAM"))
					}
					if a.resume.GetTurnId() == "" && cut > k {
						t.Error("ResumeTurn without turn_id, want the id of the delivered turn")
					}
					return a.sendRest(events)
				}}
				got, err := readTurn(f.dial(t).ResumeTurn(t.Context(),
					&parleyv1.ResumeTurnRequest{ConversationId: "c", AfterIndex: int32(k)}), nil)
				if err != nil {
					t.Fatalf("after index %d, broken after event %d: %v", k, cut, err)
				}
				checkEvents(t, events[k:], append([]*parleyv1.TurnEvent{}, got...))
			})
		}
	}
}

// TestResumeTurnAfterEventsGone checks that after EVENTS_GONE, ResumeTurn resumes only if it knows how
// much text the caller has. It knows after the first text or the first new message.
func TestResumeTurnAfterEventsGone(t *testing.T) {
	events := long()
	eventsGone := statusWithReason(codes.OutOfRange, "EVENTS_GONE")
	for _, first := range []struct {
		end   int  // The first stream sends the events from 4 to end.
		known bool // The delivered text is known.
	}{{4, false}, {5, false}, {6, true}, {8, true}} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{turn: func(a *turnCall) error {
				switch {
				case a.nth == 0:
					return errors.Join(a.send(events[4:first.end]...), eventsGone)
				case a.resume.GetAfterIndex() > 0:
					return eventsGone
				default:
					return a.send(client.Merged(events)...)
				}
			}}
			got, err := readTurn(f.dial(t).ResumeTurn(t.Context(),
				&parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: "t", AfterIndex: 4}), nil)
			want := events[4:]
			if !first.known {
				want = events[4:first.end]
			}
			if diff := cmp.Diff(client.Summary(want), client.Summary(got)); diff != "" {
				t.Errorf("up to %d (-want +got):\n%s", first.end, diff)
			}
			if reason := client.Reason(err); first.known != (err == nil) || !first.known && reason != "EVENTS_GONE" {
				t.Errorf("up to %d: error = %v, want EVENTS_GONE: %t", first.end, err, !first.known)
			}
		})
	}
}
