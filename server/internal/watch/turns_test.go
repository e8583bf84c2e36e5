package watch_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
)

func TestTurnEventsAreSentToSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		plain := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		if h.HasSubscribers() {
			t.Error("HasSubscribers() = true without TurnEvents")
		}
		all := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
		one := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}, TurnEvents: true}, nil)
		other := startClient(t, h, watch.Watch{Tenant: "u", ConversationIDs: []string{"a"}, TurnEvents: true}, nil)
		everybody := []*client{plain, all, one, other}
		for _, c := range everybody {
			c.want(t, "HEARTBEAT")
		}
		if !h.HasSubscribers() {
			t.Error("HasSubscribers() = false with TurnEvents")
		}
		commit(h, "t", "a", 1)
		event := textEvent(1)
		h.TurnEvent("t", "a", event)
		h.TurnEvent("t", "b", textEvent(2))
		h.TurnEvent("u", "a", textEvent(3))
		want := &parleyv1.ConversationChange{
			Cursor: h.Cursor("t"), Kind: parleyv1.ChangeKind_CHANGE_KIND_TURN, ConversationId: "a", Time: timestamppb.Now(),
			Payload: &parleyv1.ConversationChange_TurnEvent{TurnEvent: event},
		}
		got := one.received()
		if d := cmp.Diff([]string{"MESSAGE_APPENDED a 1", "TURN a 1"}, describe(got)); d != "" {
			t.Fatalf("changes (-want +got):\n%s", d)
		}
		if d := cmp.Diff(want, got[1], protocmp.Transform()); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
		plain.want(t, "MESSAGE_APPENDED a 1")
		all.want(t, "MESSAGE_APPENDED a 1", "TURN a 1", "TURN b 2")
		other.want(t, "TURN a 3")
		for _, c := range []*client{all, one, other} {
			_ = c.disconnect()
		}
		if h.HasSubscribers() {
			t.Error("HasSubscribers() = true after the end")
		}
		// A later watcher receives only later events.
		all = startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true, Cursor: want.GetCursor()}, nil)
		all.want(t, "HEARTBEAT")
		h.TurnEvent("t", "b", textEvent(4))
		all.want(t, "TURN b 4")
	})
}

// TestAnswerPrecedesFinishedEvent: the finished event of a turn follows the commit of its answer.
// Watchers receive them in this order, whichever notification comes first.
func TestAnswerPrecedesFinishedEvent(t *testing.T) {
	t.Run("late notification", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := watch.New(watch.Options{})
			c := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
			c.want(t, "HEARTBEAT")
			notify := h.DelayNotifications("t")
			commit(h, "t", "a", 1)
			h.TurnEvent("t", "a", finishedEvent(1))
			synctest.Wait()
			notify()
			c.want(t, "MESSAGE_APPENDED a 1", "TURN a finished")
		})
	})
	t.Run("often", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := watch.New(watch.Options{})
			c := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
			c.want(t, "HEARTBEAT")
			for version := range int32(1000) {
				h.TurnEvent("t", "a", textEvent(1))
				commit(h, "t", "a", version)
				h.TurnEvent("t", "a", finishedEvent(2))
				got := describe(c.received())
				answer, end := slices.Index(got, fmt.Sprint("MESSAGE_APPENDED a ", version)), slices.Index(got, "TURN a finished")
				if len(got) != 3 || answer < 0 || end < answer || slices.Index(got, "TURN a 1") > end {
					t.Fatalf("turn %d: changes = %q, want the message before finished", version, got)
				}
			}
		})
	})
}

// TestEventFollowsAllEarlierChanges: an event follows all earlier changes, even if there are more
// than one scan covers.
func TestEventFollowsAllEarlierChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total = 5000
		h := watch.New(watch.Options{})
		start := h.Cursor("t")
		all, one := watch.Watch{Tenant: "t", Cursor: start, TurnEvents: true},
			watch.Watch{Tenant: "t", Cursor: start, TurnEvents: true, ConversationIDs: []string{"a"}}
		for version := range int32(total) {
			commit(h, "t", "b", version)
		}
		commit(h, "t", "a", 1)
		for _, o := range []watch.Watch{all, one} {
			w := startWatch(t, h, o)
			h.TurnEvent("t", "a", finishedEvent(1))
			var changes []*parleyv1.ConversationChange
			for response, err := range w.All(t.Context(), nil) {
				change, failed := decode(response)
				if err != nil || failed != nil {
					t.Fatal(err, failed)
				}
				if changes = append(changes, change); change.GetTurnEvent() != nil {
					break
				}
			}
			w.Stop()
			got, want := describe(changes), total+3
			if o.ConversationIDs != nil {
				want = 3
			}
			if n := len(got); n != want || got[n-2] != "MESSAGE_APPENDED a 1" ||
				changes[n-1].GetCursor() != changes[n-2].GetCursor() {
				t.Errorf("event received after %d changes, last %s", n-1, got[max(n-2, 0)])
			}
		}
	})
}

// TestResumeFromCursorOfEvent: an event has the cursor of the change before it. A watcher that
// resumes from it receives exactly the changes after the event.
func TestResumeFromCursorOfEvent(t *testing.T) {
	for _, ids := range [][]string{nil, {"a"}, {"a", "c"}} {
		synctest.Test(t, func(t *testing.T) {
			h := watch.New(watch.Options{})
			c := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: ids, TurnEvents: true}, nil)
			for i := range int32(60) {
				id := []string{"a", "b", "c"}[i%3]
				if i%7 < 3 {
					commit(h, "t", id, i)
				} else {
					h.TurnEvent("t", id, textEvent(i))
				}
				if i%5 == 0 {
					synctest.Wait()
				}
			}
			got := c.received()
			last := -1
			for i, change := range got {
				at := position(t, change.GetCursor())
				if at < last {
					t.Errorf("cursor of %v moves back by %d", change, last-at)
				}
				last = at
				isEvent := func(description string) bool { return description[:4] == "TURN" }
				want := append([]string{"HEARTBEAT"}, slices.DeleteFunc(describe(got[i+1:]), isEvent)...)
				again := startClient(t, h, watch.Watch{
					Tenant: "t", ConversationIDs: ids, Cursor: change.GetCursor(),
					TurnEvents: i%2 == 0,
				}, nil)
				if d := cmp.Diff(want, describe(again.received())); d != "" {
					t.Errorf("changes from the cursor of %v (-want +got):\n%s", change, d)
				}
				_ = again.disconnect()
			}
		})
	}
}

// TestGapForDroppedEvents: a GAP reports dropped events. No change is lost or repeated.
func TestGapForDroppedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, 4, 1<<20)
		c := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
		c.want(t, "HEARTBEAT")
		c.pauseReading()
		h.TurnEvent("t", "a", textEvent(1)) // The client is about to receive it.
		synctest.Wait()
		commit(h, "t", "a", 1, 2)
		for i := range int32(5) {
			h.TurnEvent("t", "a", textEvent(2+i))
		}
		c.resumeReading()
		got := c.received()
		described := describe(got)
		gap := slices.Index(described, "GAP")
		if gap < 1 {
			t.Fatalf("changes = %q, want a GAP", described)
		}
		again := startClient(t, h, watch.Watch{Tenant: "t", Cursor: got[gap].GetCursor()}, nil)
		again.want(t, append([]string{"HEARTBEAT"}, described[gap+1:]...)...)
		_ = again.disconnect()
		if d := cmp.Diff([]string{"TURN a 1", "MESSAGE_APPENDED a 1", "MESSAGE_APPENDED a 2"},
			slices.Delete(described, gap, gap+1)); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
		commit(h, "t", "a", 3)
		c.want(t, "MESSAGE_APPENDED a 3")
		h.TurnEvent("t", "a", textEvent(7))
		c.want(t, "TURN a 7")
	})
}

// TestEventsWakeOnlyTheirWatchers: events do not wake watchers that do not want them. The end of a
// watch removes its reader of events.
func TestEventsWakeOnlyTheirWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		changed, stop := subscribe(t, h, "t", "a")
		defer stop()
		c := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}, TurnEvents: true}, nil)
		before := h.Cursor("t")
		h.TurnEvent("t", "a", textEvent(1))
		c.want(t, "HEARTBEAT", "TURN a 1")
		if isWoken(changed) || h.Cursor("t") != before {
			t.Error("event woke a subscriber or moved the cursor")
		}
		_ = c.disconnect()
		const subscriber = 1
		if _, readers := h.Readers(); readers != subscriber {
			t.Errorf("%d readers besides the subscriber, want 0", readers-subscriber)
		}
		// An event has the time at which it came, however late it is read.
		c = startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
		c.want(t, "HEARTBEAT")
		c.pauseReading()
		at := time.Now()
		h.TurnEvent("t", "a", textEvent(2))
		h.TurnEvent("t", "a", textEvent(3))
		<-time.After(time.Hour)
		c.resumeReading()
		for _, change := range c.received() {
			if got := change.GetTime().AsTime(); !got.Equal(at) {
				t.Errorf("%v: time = %v, want %v", change, got, at)
			}
		}
	})
}
