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

// long is a turn with all kinds of events: data between text, notes, a tool's result, a
// handover.
func long() []*parleyv1.TurnEvent {
	return client.Numbered("t",
		client.Started("c"), client.Text("Let "), client.Note(""), client.Text("me "), client.Data("d"), client.Text("see."),
		client.Call("1"), client.Result("1"), client.Next("a"), client.Text("It is "), client.Data("e"), client.Text("größer"),
		client.Text(" als ..."), client.Next("b"), client.Text("Done"), client.Text("."), client.Finished())
}

// from sends what follows the place that was asked for.
func (a *asked) from(events []*parleyv1.TurnEvent) error {
	return a.send(events[a.resume.GetAfterIndex():]...)
}

// breaks are the ends of streams that are gone on with.
func breaks() map[string]error {
	return map[string]error{
		"the server ends the stream":       nil,
		"the server restarts":              refused(codes.Unavailable, "SHUTTING_DOWN"),
		"the caller was slow":              refused(codes.ResourceExhausted, "SLOW_READER"),
		"something in between is away":     status.Error(codes.Unavailable, "bad gateway"),
		"something in between resets it":   status.Error(codes.Internal, "RST_STREAM"),
		"something in between cancels it":  status.Error(codes.Canceled, "RST_STREAM"),
		"something in between is confused": status.Error(codes.Unknown, "no trailers"),
		"the connection breaks":            io.EOF,
	}
}

// breaking answers with events, but ends the first stream after so many.
func breaking(events []*parleyv1.TurnEvent, after int, end error, second **asked) (f *fake, step func(int)) {
	f = &fake{}
	f.turn = func(a *asked) error {
		if a.nth > 0 {
			*second = a
			return a.from(events)
		}
		if err := a.send(events[:after]...); err != nil {
			return err
		}
		if !errors.Is(end, io.EOF) {
			return end
		}
		if after == 0 {
			f.cut()
		}
		return a.hang()
	}
	return f, func(shown int) {
		if shown == after && errors.Is(end, io.EOF) {
			f.cut()
		}
	}
}

func TestABreakBehindAnyEventGoesUnnoticed(t *testing.T) {
	events := long()
	for name, end := range breaks() {
		t.Run(name, func(t *testing.T) {
			for k := range events {
				synctest.Test(t, func(t *testing.T) {
					var second *asked
					f, step := breaking(events, k, end, &second)
					got, err := watch(f.dial(t).Chat(t.Context(), hello()), step)
					if err != nil {
						t.Fatalf("behind event %d: %v", k, err)
					}
					expect(t, events, got)
					_, ids := f.seen()
					if k == 0 {
						if second.chat == nil || ids[0] == "" || ids[0] != ids[1] {
							t.Errorf("before anything: asked with request ids %q, want Chat with one, twice", ids)
						}
						return
					}
					want := &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: "t", AfterIndex: int32(k)}
					if diff := cmp.Diff(want, second.resume, protocmp.Transform()); diff != "" {
						t.Errorf("behind event %d (-want +asked):\n%s", k, diff)
					}
				})
			}
		})
	}
}

func TestAResetBehindAnyEventGoesUnnoticed(t *testing.T) {
	events := long()
	for k := range events {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			var second *asked
			f, step := breaking(events, k, io.EOF, &second)
			c, err := client.Dial(listen(t, f, "tcp", "127.0.0.1:0"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got, err := watch(c.Chat(t.Context(), hello()), step)
			if err != nil {
				t.Fatalf("behind event %d: %v", k, err)
			}
			expect(t, events, got)
		})
	}
}

// The events are gone behind any event k, the replay is of any time n, and breaks behind any
// of its events j.
func TestEventsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := long()
		var k, n, j, asks int
		f := &fake{turn: func(a *asked) error {
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
				return refused(codes.OutOfRange, "EVENTS_GONE")
			}
			replay := append(client.Merged(events[:n]), events[n:]...)
			if asks <= 3 {
				replay = replay[:min(j, len(replay))]
				n = min(n+1, len(events)) // The next one is of a later time.
			}
			return a.send(replay...)
		}}
		turn := f.dial(t).Chat(t.Context(), hello())
		for before := 1; before < len(events); before++ {
			for when := before; when <= len(events); when += 5 {
				for cut := 0; cut <= len(events); cut += 2 {
					k, n, j, asks = before, when, cut, 0
					got, err := watch(turn, nil)
					if err != nil {
						t.Fatalf("behind %d, replay of %d, broken behind %d: %v", before, when, cut, err)
					}
					if diff := cmp.Diff(client.Story(events), client.Story(got)); diff != "" {
						t.Fatalf("behind %d, replay of %d, broken behind %d (-want +got):\n%s", before, when, cut, diff)
					}
					checkIndexes(t, got)
				}
			}
		}
	})
}

func checkIndexes(t *testing.T, events []*parleyv1.TurnEvent) {
	t.Helper()
	for i, event := range events {
		if i > 0 && event.GetIndex() <= events[i-1].GetIndex() {
			t.Fatalf("index %d comes after %d", event.GetIndex(), events[i-1].GetIndex())
		}
	}
}

func TestACrashOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := client.Numbered("t", client.Started("c"), client.Text("Once"), client.Text(" upon"), client.Text(" a ti"))
		end := client.Finished()
		end.TurnId, end.Index = "t", 1<<20
		f := &fake{}
		f.turn = func(a *asked) error {
			switch {
			case a.nth == 0:
				if err := a.send(events...); err != nil {
					return err
				}
				return a.hang()
			case a.resume.GetAfterIndex() > 3:
				return refused(codes.OutOfRange, "EVENTS_GONE")
			default: // The last piece had not been saved.
				return a.send(append(client.Merged(events[:3]), end)...)
			}
		}
		got, err := watch(f.dial(t).Chat(t.Context(), hello()), func(shown int) {
			if shown == len(events) {
				f.cut()
			}
		})
		if err != nil {
			t.Error(err)
		}
		expect(t, append(events, end), got)
	})
}

func TestAPlaceInTheQueue(t *testing.T) {
	waited := client.Numbered("t1", client.Queued(2), client.Queued(1))
	kept := client.Numbered("t1", client.Queued(2), client.Queued(1), client.Started("c"), client.Text("hi"), client.Finished())
	anew := client.Numbered("t2", client.Queued(3), client.Started("c"), client.Text("hi"), client.Finished())
	for name, second := range map[string][]*parleyv1.TurnEvent{"kept": kept, "lost": anew} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.turn = func(a *asked) error {
					if a.nth > 0 {
						return a.send(second...)
					}
					if err := a.send(waited...); err != nil {
						return err
					}
					return a.hang()
				}
				got, err := watch(f.dial(t).Chat(t.Context(), hello()), func(shown int) {
					if shown == 2 {
						f.cut()
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				want := kept
				if name == "lost" {
					want = slices.Concat(waited, anew)
				}
				expect(t, want, got)
				if _, ids := f.seen(); len(ids) != 2 || ids[0] != ids[1] {
					t.Errorf("request ids = %q, want one, twice", ids)
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
				f := &fake{turn: func(a *asked) error {
					if a.nth == 0 {
						return errors.Join(a.send(events[k:cut]...), status.Error(codes.Internal, "RST_STREAM"))
					}
					if a.resume.GetTurnId() == "" && cut > k {
						t.Error("asked for any turn, want the one that was shown")
					}
					return a.from(events)
				}}
				got, err := watch(f.dial(t).ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c", AfterIndex: int32(k)}), nil)
				if err != nil {
					t.Fatalf("from %d, broken behind %d: %v", k, cut, err)
				}
				expect(t, events[k:], append([]*parleyv1.TurnEvent{}, got...))
			})
		}
	}
}

// How much text was shown is known only once there has been some.
func TestResumeTurnOfEventsThatAreGone(t *testing.T) {
	events := long()
	gone := refused(codes.OutOfRange, "EVENTS_GONE")
	for _, first := range []struct {
		end   int // Of what the first stream brings from event 4 on.
		known bool
	}{{4, false}, {5, false}, {6, true}, {8, true}} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{turn: func(a *asked) error {
				switch {
				case a.nth == 0:
					return errors.Join(a.send(events[4:first.end]...), gone)
				case a.resume.GetAfterIndex() > 0:
					return gone
				default:
					return a.send(client.Merged(events)...)
				}
			}}
			got, err := watch(f.dial(t).ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: "t", AfterIndex: 4}), nil)
			want := events[4:]
			if !first.known {
				want = events[4:first.end]
			}
			if diff := cmp.Diff(client.Story(want), client.Story(got)); diff != "" {
				t.Errorf("up to %d (-want +got):\n%s", first.end, diff)
			}
			if reason := client.Reason(err); first.known != (err == nil) || !first.known && reason != "EVENTS_GONE" {
				t.Errorf("up to %d: error = %v", first.end, err)
			}
		})
	}
}
