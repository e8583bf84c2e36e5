package watch_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

func TestFeedLimits(t *testing.T) {
	const message = 1 << 10
	tests := []struct {
		name         string
		count, bytes int // the limits
		size, number int // of contents, and how many
		want         int
	}{
		{"count", 10, 1 << 30, message, 100, 10},
		{"one", 1, 1 << 30, message, 100, 1},
		{"bytes", 1000, 100 * message, message, 1000, 75}, // plus about 320 bytes for each
		{"one that is larger", 1000, message, 10 * message, 5, 1},
		{"all", 1000, 1 << 30, message, 100, 100},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := watch.NewSmall(watch.Options{}, test.count, test.bytes)
				startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil) // Whoever reads does not add to it.
				content := strings.Repeat("x", test.size)
				check := func() {
					changes, changeBytes, events, eventBytes := h.Retained()
					if changes > test.count || changeBytes > test.bytes && changes > 1 || changeBytes < changes*test.size {
						t.Fatalf("%d changes and %d bytes are kept", changes, changeBytes)
					}
					if events > test.count || eventBytes > test.bytes && events > 1 || eventBytes < events*test.size {
						t.Fatalf("%d events and %d bytes are kept", events, eventBytes)
					}
				}
				event := textEvent(1)
				event.GetTextDelta().Text = content
				for i := range test.number {
					h.Committed([]store.Change{appendedChange("t", "a", int32(i), content)})
					h.TurnEvent("t", "a", event)
					check()
				}
				if changes, _, events, _ := h.Retained(); changes != test.want || events != test.want {
					t.Errorf("%d changes and %d events are kept, want %d", changes, events, test.want)
				}
				// A batch is as bounded.
				batch := make([]store.Change, test.number)
				for i := range batch {
					batch[i] = appendedChange("t", "a", int32(i), content)
				}
				h.Committed(batch)
				check()
			})
		})
	}
}

func TestTooManyWatchers(t *testing.T) {
	const limit = 10
	h := watch.New(watch.Options{MaxWatchers: limit})
	var ends []func()
	for i := range limit {
		if i%2 == 0 {
			ends = append(ends, startWatch(t, h, watch.Watch{Tenant: fmt.Sprint(i), TurnEvents: true}).Stop)
			continue
		}
		_, stop := subscribe(t, h, fmt.Sprint(i), "a")
		ends = append(ends, stop)
	}
	refuse := func() {
		t.Helper()
		if _, err := h.Watch(watch.Watch{Tenant: "t"}); !errors.Is(err, watch.ErrTooMany) {
			t.Errorf("watcher %d: %v", limit+1, err)
		}
		if _, _, err := h.Subscribe("t", "a"); !errors.Is(err, watch.ErrTooMany) {
			t.Errorf("reader %d: %v", limit+1, err)
		}
	}
	refuse()
	for _, end := range ends[:2] {
		end()
		end() // Which counts once.
		startWatch(t, h, watch.Watch{Tenant: "t"})
		refuse()
	}
}

func TestTooManyIDs(t *testing.T) {
	const each = 1000
	h := watch.New(watch.Options{})
	ids := make([]string, each)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	var all []*watch.Watcher
	for range watch.MaxWatchedIDs / each {
		all = append(all, startWatch(t, h, watch.Watch{Tenant: "t", ConversationIDs: ids}))
	}
	refused := func(o watch.Watch) {
		t.Helper()
		if _, err := h.Watch(o); !errors.Is(err, watch.ErrTooMany) {
			t.Errorf("%d ids more: %v", len(o.ConversationIDs), err)
		}
	}
	refused(watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}})
	startWatch(t, h, watch.Watch{Tenant: "t"}).Stop() // It names none.
	all[0].Stop()
	_, stop := subscribe(t, h, "t", "a") // Nor does one that waits, or the same one again.
	defer stop()
	startWatch(t, h, watch.Watch{Tenant: "t", ConversationIDs: slices.Concat(ids, ids)}).Stop()
	startWatch(t, h, watch.Watch{Tenant: "t", ConversationIDs: ids}).Stop()
	for _, w := range all {
		w.Stop()
	}
	stop()
	if keys, readers := h.Readers(); keys != 0 || readers != 0 || h.Watchers() != 0 {
		t.Errorf("%d keys, %d readers and %d watchers are left", keys, readers, h.Watchers())
	}
}

// TestTenThousandWatchers: they cost a goroutine each, which is that of their stream, and
// nothing is left of them.
func TestTenThousandWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total = 10_000
		h := watch.New(watch.Options{})
		stop := make(chan struct{})
		before := runtime.NumGoroutine()
		clients := make([]*client, total)
		for i := range clients {
			o := watch.Watch{Tenant: fmt.Sprint("t", i%3), TurnEvents: i%10 == 0}
			if i >= 100 { // Most watch one conversation, and every tenth waits for the same.
				o.ConversationIDs = []string{fmt.Sprint("c", i), "all"}
			}
			clients[i] = startClient(t, h, o, stop)
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > total {
			t.Errorf("%d goroutines for %d watchers", n, total)
		}
		if n := h.Watchers(); n != total {
			t.Errorf("%d watchers are counted", n)
		}
		for _, c := range clients {
			c.want(t, "HEARTBEAT")
		}
		if n := runtime.NumGoroutine() - before; n > total {
			t.Errorf("%d goroutines for %d watchers that wait", n, total)
		}
		h.Committed([]store.Change{appendedChange("t0", "all", 1, ""), appendedChange("t1", "c100", 2, "")})
		synctest.Wait()
		for i, c := range clients {
			var want []string
			if i%3 == 0 {
				want = append(want, "MESSAGE_APPENDED all 1")
			}
			if i%3 == 1 && (i < 100 || i == 100) {
				want = append(want, "MESSAGE_APPENDED c100 2")
			}
			c.want(t, want...)
		}
		close(stop)
		for _, c := range clients {
			<-c.ended
		}
		if keys, readers := h.Readers(); keys != 0 || readers != 0 || h.Watchers() != 0 || h.HasSubscribers() {
			t.Errorf("%d keys, %d readers and %d watchers are left", keys, readers, h.Watchers())
		}
	})
}

// TestWritersWaitForNobody: not for a watcher whose client never reads, however much comes.
func TestWritersDoNotWaitForWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, 10, 1<<20)
		var stuck []*client
		for i := range 100 {
			o := watch.Watch{Tenant: "t", TurnEvents: i%2 == 0}
			if i%3 == 0 {
				o.ConversationIDs = []string{"a"}
			}
			c := startClient(t, h, o, nil)
			if i%5 != 0 { // Some do not even take the first heartbeat.
				c.want(t, "HEARTBEAT")
			}
			c.pauseReading()
			stuck = append(stuck, c)
		}
		reads := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		for version := range int32(1000) {
			commit(h, "t", "a", version)
			h.TurnEvent("t", "a", textEvent(version))
			if version%10 == 0 {
				synctest.Wait() // The one that reads keeps up.
			}
		}
		got := describe(reads.received())
		if len(got) != 1001 || got[1000] != "MESSAGE_APPENDED a 999" {
			t.Errorf("who reads got %d changes, the last is %s", len(got), got[len(got)-1])
		}
		for _, c := range append(stuck, reads) {
			if err := c.disconnect(); !errors.Is(err, errDisconnected) {
				t.Errorf("a watcher ended with %v", err)
			}
		}
		if n := h.Watchers(); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	})
}
