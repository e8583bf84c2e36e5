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

func TestWatchResumesAfterItsLastChange(t *testing.T) {
	changes := messageChanges(5)
	for name, end := range resumableErrors() {
		t.Run(name, func(t *testing.T) {
			// The first stream breaks after k messages. The heartbeat is the first one.
			for k := range len(changes) + 2 {
				synctest.Test(t, func(t *testing.T) {
					var asks []*parleyv1.WatchConversationsRequest
					var f *fake
					f = watchFake(func(w *watchCall) error {
						asks = append(asks, w.request)
						all := append([]*parleyv1.ConversationChange{heartbeat(w.position())}, changes[w.position():]...)
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
							f.breakConnections()
						}
						return w.hang()
					})
					request := watchRequest()
					shown := 0
					got, err := readChanges(f.dial(t).WatchConversations(t.Context(), request), func(change *parleyv1.ConversationChange) bool {
						shown++
						if shown == k && errors.Is(end, io.EOF) {
							f.breakConnections()
						}
						return untilPosition(6)(change)
					})
					if err != nil {
						t.Fatalf("after message %d: %v", k, err)
					}
					position := max(k-1, 0)
					want := append([]*parleyv1.ConversationChange{heartbeat(0)}, changes[:position]...)[:k]
					want = slices.Concat(want, []*parleyv1.ConversationChange{heartbeat(position)}, changes[position:],
						[]*parleyv1.ConversationChange{gap(6)})
					if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
						t.Errorf("after message %d: changes (-want +got):\n%s", k, diff)
					}
					again := watchRequest()
					if k > 0 {
						again.Cursor = heartbeat(position).GetCursor()
					}
					if diff := cmp.Diff([]*parleyv1.WatchConversationsRequest{watchRequest(), again}, asks, protocmp.Transform()); diff != "" {
						t.Errorf("after message %d: requests (-want +got):\n%s", k, diff)
					}
					if !proto.Equal(request, watchRequest()) {
						t.Errorf("the request of the caller became %v, want no change", request)
					}
				})
			}
		})
	}
}

// brokenStream is a stream that breaks. Before it the server may be at its limit of watchers, or may
// have restarted, so that it no longer knows the old cursors.
type brokenStream struct {
	Refusals int    // The number of TOO_MANY_WATCHERS errors before the stream.
	Lost     int    // The server does not know the cursors before this position.
	Messages int    // The stream breaks after this number of messages.
	End      string // The name of the error that ends the stream.
}

func TestNoChangeIsMissingOrDoubled(t *testing.T) {
	ends := resumableErrors()
	delete(ends, "the connection breaks") // The test cannot know how many changes the client has received.
	streams := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) brokenStream {
		return brokenStream{
			rapid.IntRange(0, 3).Draw(rt, "refusals"), rapid.IntRange(0, 20).Draw(rt, "lost"),
			rapid.IntRange(0, 9).Draw(rt, "messages"),
			rapid.SampledFrom(slices.Sorted(maps.Keys(ends))).Draw(rt, "end"),
		}
	}), 0, 8)
	rapid.Check(t, func(rt *rapid.T) {
		plan := streams.Draw(rt, "streams")
		from := rapid.IntRange(0, 20).Draw(rt, "from")
		var failure string // A rapid test must not be stopped inside the synctest bubble.
		synctest.Test(t, func(t *testing.T) { failure = watchBroken(t, plan, ends, from) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// watchBroken watches 20 changes from a position, over the streams of plan and a last one that
// contains the rest. It returns a description of what is wrong with the received changes, or "".
func watchBroken(t *testing.T, plan []brokenStream, ends map[string]error, from int) (failure string) {
	t.Helper()
	changes, end := messageChanges(20), gap(21)
	var sent []*parleyv1.ConversationChange
	f := watchFake(func(w *watchCall) error {
		now := brokenStream{Messages: len(changes) + 3}
		if len(plan) > 0 {
			if len(sent) > 0 && plan[0].Refusals > 0 {
				plan[0].Refusals--
				return statusWithReason(codes.ResourceExhausted, "TOO_MANY_WATCHERS")
			}
			now, plan = plan[0], plan[1:]
		}
		position := w.position()
		all := []*parleyv1.ConversationChange{heartbeat(position)}
		if now.Lost > position {
			position = now.Lost
			all = []*parleyv1.ConversationChange{gap(position), heartbeat(position)}
		}
		all = append(append(all, changes[position:]...), end)
		all = all[:min(now.Messages, len(all))]
		sent = append(sent, all...)
		if err := w.send(all...); err != nil || now.End == "" {
			return errors.Join(err, w.hang())
		}
		return ends[now.End]
	})
	request := &parleyv1.WatchConversationsRequest{Cursor: heartbeat(from).GetCursor()}
	got, err := readChanges(f.dial(t).WatchConversations(t.Context(), request), untilPosition(21))
	if err != nil {
		return err.Error()
	}
	if diff := cmp.Diff(sent, got, protocmp.Transform()); diff != "" {
		return "changes (-sent +got):\n" + diff
	}
	last := from
	for _, change := range got {
		position := cursorPosition(change)
		follows := change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED && position == last+1
		if !follows && position != last && change.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_GAP {
			return fmt.Sprintf("%v follows position %d", change, last)
		}
		last = position
	}
	if last != cursorPosition(end) {
		return fmt.Sprintf("the last change is %d, want %d", last, cursorPosition(end))
	}
	return ""
}

// TestWatchDoesNotRequestTurnEventsAgain checks that a watch resumes after the last change. Events of
// turns have no cursor of their own, so it resumes after the change before them.
func TestWatchDoesNotRequestTurnEventsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cursors []string
		f := watchFake(func(w *watchCall) error {
			cursors = append(cursors, w.request.GetCursor())
			if w.nth > 0 {
				return errors.Join(w.send(gap(2)), w.hang())
			}
			event := change(parleyv1.ChangeKind_CHANGE_KIND_TURN, 1)
			event.Payload = &parleyv1.ConversationChange_TurnEvent{TurnEvent: short()[0]}
			withoutCursor := change(parleyv1.ChangeKind_CHANGE_KIND_TURN, 1)
			withoutCursor.Cursor = ""
			return errors.Join(w.send(heartbeat(0), messageChanges(1)[0], event, withoutCursor, nil),
				status.Error(codes.Unavailable, "closing"))
		})
		got, err := readChanges(f.dial(t).WatchConversations(t.Context(), watchRequest()), untilPosition(2))
		if err != nil || len(got) != 5 {
			t.Errorf("%d changes, error = %v; want 5 changes", len(got), err)
		}
		if want := []string{"", "1"}; !slices.Equal(cursors, want) {
			t.Errorf("cursors of the requests = %q, want %q", cursors, want)
		}
	})
}
