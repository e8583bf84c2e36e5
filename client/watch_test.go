package client_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestAWatchGoesOnBehindItsLastChange(t *testing.T) {
	changes := committed(5)
	for name, end := range breaks() {
		t.Run(name, func(t *testing.T) {
			// Behind so many messages of the first stream: 0 is not even the heartbeat.
			for k := range len(changes) + 2 {
				synctest.Test(t, func(t *testing.T) {
					var asks []*parleyv1.WatchConversationsRequest
					var f *fake
					f = showing(func(w *watched) error {
						asks = append(asks, w.request)
						all := append([]*parleyv1.ConversationChange{heartbeat(w.place())}, changes[w.place():]...)
						if w.nth > 0 {
							return errors.Join(w.send(all...), w.send(gap(6)), w.hang())
						}
						if err := w.send(all[:k]...); err != nil {
							return err
						}
						if !errors.Is(end, io.EOF) {
							return end
						}
						if k == 0 {
							f.cut()
						}
						return w.hang()
					})
					request := session()
					shown := 0
					got, err := follow(f.dial(t).WatchConversations(t.Context(), request), func(change *parleyv1.ConversationChange) bool {
						shown++
						if shown == k && errors.Is(end, io.EOF) {
							f.cut()
						}
						return upTo(6)(change)
					})
					if err != nil {
						t.Fatalf("behind message %d: %v", k, err)
					}
					place := max(k-1, 0)
					want := append([]*parleyv1.ConversationChange{heartbeat(0)}, changes[:place]...)[:k]
					want = slices.Concat(want, []*parleyv1.ConversationChange{heartbeat(place)}, changes[place:], []*parleyv1.ConversationChange{gap(6)})
					if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
						t.Errorf("behind message %d, changes (-want +got):\n%s", k, diff)
					}
					again := session()
					if k > 0 {
						again.Cursor = heartbeat(place).GetCursor()
					}
					if diff := cmp.Diff([]*parleyv1.WatchConversationsRequest{session(), again}, asks, protocmp.Transform()); diff != "" {
						t.Errorf("behind message %d, requests (-want +asked):\n%s", k, diff)
					}
					if !proto.Equal(request, session()) {
						t.Errorf("the caller's request became %v", request)
					}
				})
			}
		})
	}
}

// brokenStream is one that breaks behind so many messages. Before it the server may be full,
// or have been restarted, and then it knows none of the old cursors.
type brokenStream struct {
	Refusals int // Before it.
	Lost     int // Up to here no cursor is known any more.
	Messages int
	End      string
}

func TestNoChangeIsMissingOrDoubled(t *testing.T) {
	ends := breaks()
	delete(ends, "the connection breaks") // Nobody can tell how far it had come.
	streams := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) brokenStream {
		return brokenStream{
			rapid.IntRange(0, 3).Draw(rt, "refusals"), rapid.IntRange(0, 20).Draw(rt, "lost"), rapid.IntRange(0, 9).Draw(rt, "messages"),
			rapid.SampledFrom(slices.Sorted(maps.Keys(ends))).Draw(rt, "end"),
		}
	}), 0, 8)
	rapid.Check(t, func(rt *rapid.T) {
		plan := streams.Draw(rt, "streams")
		from := rapid.IntRange(0, 20).Draw(rt, "from")
		var failure string // The bubble is no place to stop a test of rapid's.
		synctest.Test(t, func(t *testing.T) { failure = watchBroken(t, plan, ends, from) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// watchBroken watches 20 changes from one on, over the streams of a plan and a last one that
// brings the rest, and says what is wrong with what it is shown.
func watchBroken(t *testing.T, plan []brokenStream, ends map[string]error, from int) (failure string) {
	t.Helper()
	changes, end := committed(20), gap(21)
	var sent []*parleyv1.ConversationChange
	f := showing(func(w *watched) error {
		now := brokenStream{Messages: len(changes) + 3}
		if len(plan) > 0 {
			if len(sent) > 0 && plan[0].Refusals > 0 {
				plan[0].Refusals--
				return refused(codes.ResourceExhausted, "TOO_MANY_WATCHERS")
			}
			now, plan = plan[0], plan[1:]
		}
		place := w.place()
		all := []*parleyv1.ConversationChange{heartbeat(place)}
		if now.Lost > place {
			place = now.Lost
			all = []*parleyv1.ConversationChange{gap(place), heartbeat(place)}
		}
		all = append(append(all, changes[place:]...), end)
		all = all[:min(now.Messages, len(all))]
		sent = append(sent, all...)
		if err := w.send(all...); err != nil || now.End == "" {
			return errors.Join(err, w.hang())
		}
		return ends[now.End]
	})
	request := &parleyv1.WatchConversationsRequest{Cursor: heartbeat(from).GetCursor()}
	got, err := follow(f.dial(t).WatchConversations(t.Context(), request), upTo(21))
	if err != nil {
		return err.Error()
	}
	if diff := cmp.Diff(sent, got, protocmp.Transform()); diff != "" {
		return "changes (-sent +got):\n" + diff
	}
	last := from
	for _, change := range got {
		place := placeOf(change)
		follows := change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED && place == last+1
		if !follows && place != last && change.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_GAP {
			return fmt.Sprintf("%v comes behind %d", change, last)
		}
		last = place
	}
	if last != placeOf(end) {
		return fmt.Sprintf("the last change is %d, want all %d", last, placeOf(end))
	}
	return ""
}

// Events of turns have no cursor of their own: what is gone on with is the change before.
func TestEventsOfTurnsAreNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cursors []string
		f := showing(func(w *watched) error {
			cursors = append(cursors, w.request.GetCursor())
			if w.nth > 0 {
				return errors.Join(w.send(gap(2)), w.hang())
			}
			event := change(parleyv1.ChangeKind_CHANGE_KIND_TURN, 1)
			event.Payload = &parleyv1.ConversationChange_TurnEvent{TurnEvent: short()[0]}
			bare := change(parleyv1.ChangeKind_CHANGE_KIND_TURN, 1)
			bare.Cursor = ""
			return errors.Join(w.send(heartbeat(0), committed(1)[0], event, bare, nil), status.Error(codes.Unavailable, "closing"))
		})
		got, err := follow(f.dial(t).WatchConversations(t.Context(), session()), upTo(2))
		if err != nil || len(got) != 5 {
			t.Errorf("%d changes, error = %v; want 5 changes", len(got), err)
		}
		if want := []string{"", "1"}; !slices.Equal(cursors, want) {
			t.Errorf("asked behind %q, want %q", cursors, want)
		}
	})
}
