package watch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// elsewhere passes an event of a turn of another server to a hub.
func elsewhere(h *watch.Hub, tenant, id string, event *parleyv1.TurnEvent) {
	h.EventElsewhere(tenant, &parleyv1.ConversationChange{
		Kind: parleyv1.ChangeKind_CHANGE_KIND_TURN, ConversationId: id, Time: timestamppb.Now(),
		Payload: &parleyv1.ConversationChange_TurnEvent{TurnEvent: event},
	})
}

// readEvents reads what another server receives of the tenant "t", until stop is closed. paused is called before each
// response.
func readEvents(
	t *testing.T, h *watch.Hub, stop <-chan struct{}, paused func(),
) (received func() []*parleyv1.ConversationChange) {
	t.Helper()
	events, done := h.Events("t"), make(chan []*parleyv1.ConversationChange, 1)
	go func() {
		defer events.Stop()
		var all []*parleyv1.ConversationChange
		for response, err := range events.All(t.Context(), stop) {
			paused()
			change, failed := decode(response)
			if err != nil || failed != nil {
				t.Error(err, failed)
			}
			all = append(all, change)
		}
		done <- all
	}()
	return func() []*parleyv1.ConversationChange { return <-done }
}

// TestEventsForServers: another server receives the events of this server's turns of one tenant, but no changes and no
// events of other servers. It does not count as a watcher. At the end it receives the events that came before.
func TestEventsForServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{MaxWatchers: 1})
		stop := make(chan struct{})
		received := readEvents(t, h, stop, func() {})
		synctest.Wait()
		if !h.HasSubscribers() || h.Watchers() != 0 || h.TenantWatchers("t") != 0 {
			t.Errorf("HasSubscribers() = %t, Watchers() = %d, want true and none", h.HasSubscribers(), h.Watchers())
		}
		c := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
		commit(h, "t", "a", 1)
		h.TurnEvent("t", "a", textEvent(1))
		h.TurnEvent("u", "a", textEvent(2))
		elsewhere(h, "t", "a", textEvent(3))
		h.EventsMissed("t")
		c.want(t, "HEARTBEAT", "MESSAGE_APPENDED a 1", "TURN a 1", "TURN a 3", "GAP")
		h.TurnEvent("t", "a", finishedEvent(4))
		close(stop)
		if d := cmp.Diff([]string{"HEARTBEAT", "TURN a 1", "TURN a finished"}, describe(received())); d != "" {
			t.Errorf("received (-want +got):\n%s", d)
		}
		_ = c.disconnect()
		synctest.Wait()
		if h.HasSubscribers() {
			t.Error("HasSubscribers() = true after the end")
		}
	})
}

// TestSlowServerReceivesGap: a server that reads too slowly receives a GAP in place of the events that were dropped.
func TestSlowServerReceivesGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, 4, 1<<20)
		stop, reading := make(chan struct{}), make(chan struct{})
		received := readEvents(t, h, stop, func() { <-reading })
		synctest.Wait()
		for i := range int32(6) {
			h.TurnEvent("t", "a", textEvent(i))
		}
		close(reading)
		synctest.Wait()
		h.TurnEvent("t", "a", textEvent(7))
		close(stop)
		if d := cmp.Diff([]string{"HEARTBEAT", "GAP", "TURN a 7"}, describe(received())); d != "" {
			t.Errorf("received (-want +got):\n%s", d)
		}
	})
}

// TestEventsMissed: all watchers of the tenant that want turn events receive a GAP, in its place among the changes, and
// no others. A watch for which Missed was called begins with one.
func TestEventsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		all := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
		one := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"b"}, TurnEvents: true}, nil)
		plain := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		other := startClient(t, h, watch.Watch{Tenant: "u", TurnEvents: true}, nil)
		clients := []*client{all, one, plain, other}
		for _, c := range clients {
			c.want(t, "HEARTBEAT")
		}
		commit(h, "t", "a", 1)
		h.EventsMissed("t")
		elsewhere(h, "t", "a", textEvent(2))
		all.want(t, "MESSAGE_APPENDED a 1", "GAP", "TURN a 2")
		one.want(t, "GAP")
		plain.want(t, "MESSAGE_APPENDED a 1")
		other.want(t)
		for _, c := range clients {
			_ = c.disconnect()
		}
		w := startWatch(t, h, watch.Watch{Tenant: "t", TurnEvents: true})
		defer w.Stop()
		w.Missed()
		var begin []*parleyv1.ConversationChange
		for response, err := range w.All(t.Context(), nil) {
			change, failed := decode(response)
			if err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			if begin = append(begin, change); len(begin) == 2 {
				break
			}
		}
		if d := cmp.Diff([]string{"GAP", "HEARTBEAT"}, describe(begin)); d != "" {
			t.Errorf("begin (-want +got):\n%s", d)
		}
	})
}

func missChanges(h *watch.Hub) {
	h.Committed([]store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_GAP}})
}

// TestAwaitChange: AwaitChange returns when the hub has received the change or has just missed changes, and after 1 s.
func TestAwaitChange(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, later func(h *watch.Hub)
		want          time.Duration
	}{
		{"there", func(h *watch.Hub) { commit(h, "t", "a", 1, 2, 3) }, func(*watch.Hub) {}, 0},
		{
			"later", func(h *watch.Hub) { commit(h, "t", "a", 1) }, func(h *watch.Hub) { commit(h, "t", "a", 2) },
			100 * time.Millisecond,
		},
		{"missed", func(*watch.Hub) {}, missChanges, 100 * time.Millisecond},
		{"missed just before", func(h *watch.Hub) { commit(h, "t", "b", 1); missChanges(h) }, func(*watch.Hub) {}, 0},
		{ // By now, the change would have come again.
			"missed long before", func(h *watch.Hub) { commit(h, "t", "b", 1); missChanges(h); <-time.After(time.Minute) },
			func(h *watch.Hub) { commit(h, "t", "a", 2) }, 100 * time.Millisecond,
		},
		{
			"never", func(h *watch.Hub) { commit(h, "t", "b", 2); commit(h, "u", "a", 2) }, func(h *watch.Hub) {
				commit(h, "t", "a", 1)
			}, time.Second,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := watch.New(watch.Options{})
				test.before(h)
				late := time.AfterFunc(100*time.Millisecond, func() { test.later(h) })
				defer late.Stop()
				began := time.Now()
				h.AwaitChange(t.Context(), "t", "a", 2)
				if took := time.Since(began); took != test.want {
					t.Errorf("AwaitChange took %v, want %v", took, test.want)
				}
			})
		})
	}
}
