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
		count, bytes int // limits
		size, number int // size and number of contents
		want         int
	}{
		{"count", 10, 1 << 30, message, 100, 10},
		{"one", 1, 1 << 30, message, 100, 1},
		{"bytes", 1000, 100 * message, message, 1000, 74}, // plus about 336 bytes for each
		{"one larger than the limit", 1000, message, 10 * message, 5, 1},
		{"all", 1000, 1 << 30, message, 100, 100},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := watch.NewSmall(watch.Options{}, test.count, test.bytes)
				startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil) // A reader does not change what is retained.
				content := strings.Repeat("x", test.size)
				check := func() {
					changes, changeBytes, events, eventBytes := h.Retained()
					if changes > test.count || changeBytes > test.bytes && changes > 1 || changeBytes < changes*test.size {
						t.Fatalf("Retained() = %d changes of %d bytes, above a limit", changes, changeBytes)
					}
					if events > test.count || eventBytes > test.bytes && events > 1 || eventBytes < events*test.size {
						t.Fatalf("Retained() = %d events of %d bytes, above a limit", events, eventBytes)
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
					t.Errorf("Retained() = %d changes and %d events, want %d each", changes, events, test.want)
				}
				// A batch has the same limits.
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

// TestTenantsShareLimits checks that a tenant that floods the hub loses its own entries. Tenants with fewer entries
// lose none. If all tenants have many, they have equal shares.
func TestTenantsShareLimits(t *testing.T) {
	const limit = 100
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, limit, 1<<30)
		start := h.Cursor("quiet")
		slow := startClient(t, h, watch.Watch{Tenant: "quiet", TurnEvents: true}, nil)
		slow.want(t, "HEARTBEAT")
		slow.pauseReading()
		commit(h, "quiet", "a", 1, 2, 3)
		h.TurnEvent("quiet", "a", textEvent(4))
		flood := startClient(t, h, watch.Watch{Tenant: "flood", TurnEvents: true}, nil)
		for version := range int32(10 * limit) {
			commit(h, "flood", "a", version)
			h.TurnEvent("flood", "a", textEvent(version))
		}
		flood.received()
		want := []string{"MESSAGE_APPENDED a 1", "MESSAGE_APPENDED a 2", "MESSAGE_APPENDED a 3"}
		slow.resumeReading()
		slow.want(t, append(want, "TURN a 4")...)
		resumed := startClient(t, h, watch.Watch{Tenant: "quiet", Cursor: start}, nil)
		resumed.want(t, append([]string{"HEARTBEAT"}, want...)...)
		if changes, _, _, _ := h.Retained(); changes != limit || h.RetainedOf("quiet") != 3 || h.RetainedOf("flood") != limit-3 {
			t.Errorf("%d changes retained, %d of quiet and %d of flood; want %d, 3 and the rest", changes,
				h.RetainedOf("quiet"), h.RetainedOf("flood"), limit)
		}
		for version := range int32(10 * limit) {
			for i := range 4 {
				commit(h, fmt.Sprint("many", i), "a", version)
			}
		}
		for _, tenant := range []string{"many0", "many1", "many2", "many3", "flood"} {
			if n := h.RetainedOf(tenant); n < limit/5-1 || n > limit/5 {
				t.Errorf("%d changes of %s retained, want a fifth of %d", n, tenant, limit)
			}
		}
		if n := h.RetainedOf("quiet"); n != 3 {
			t.Errorf("%d changes of quiet retained, want 3", n)
		}
	})
}

// TestLargeEntriesCount checks that the share of a tenant is the larger one of two parts: that of the number of its
// entries, and that of their size.
func TestLargeEntriesCount(t *testing.T) {
	h := watch.NewSmall(watch.Options{}, 100, 100<<10)
	for version := range int32(20) {
		commit(h, "small", "a", version)
	}
	for version := range int32(20) {
		h.Committed([]store.Change{appendedChange("large", "a", version, strings.Repeat("x", 10<<10))})
	}
	if small, large := h.RetainedOf("small"), h.RetainedOf("large"); small != 20 || large < 5 || large > 9 {
		t.Errorf("%d small and %d large changes retained, want 20 and those that fit into the rest", small, large)
	}
}

// TestMoreTenantsThanEntries checks that the hub removes a tenant after it has dropped the tenant's last entry, and
// answers the tenant's cursors with a GAP. The cursors of tenants in use stay valid.
func TestMoreTenantsThanEntries(t *testing.T) {
	const limit = 10
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, limit, 1<<30)
		watched := startClient(t, h, watch.Watch{Tenant: "watched"}, nil)
		first := h.Cursor("first")
		commit(h, "watched", "a", 1)
		commit(h, "first", "a", 1)
		cursor := watched.want(t, "HEARTBEAT", "MESSAGE_APPENDED a 1")
		for i := range 10 * limit {
			commit(h, fmt.Sprint("tenant", i), "a", 1)
		}
		if n := h.Tenants(); n > limit+1 {
			t.Errorf("%d tenants have feeds, want at most %d", n, limit+1)
		}
		commit(h, "first", "a", 2) // Its position is 1 again.
		startClient(t, h, watch.Watch{Tenant: "first", Cursor: first}, nil).want(t, "GAP", "HEARTBEAT")
		startClient(t, h, watch.Watch{Tenant: "watched", Cursor: cursor}, nil).want(t, "HEARTBEAT")
		commit(h, "watched", "a", 2)
		watched.want(t, "MESSAGE_APPENDED a 2")
	})
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
			t.Errorf("Watch number %d: error = %v, want ErrTooMany", limit+1, err)
		}
		if _, _, err := h.Subscribe("t", "a"); !errors.Is(err, watch.ErrTooMany) {
			t.Errorf("Subscribe number %d: error = %v, want ErrTooMany", limit+1, err)
		}
	}
	refuse()
	for _, end := range ends[:2] {
		end()
		end() // This call has no effect.
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
			t.Errorf("Watch with %d more ids: error = %v, want ErrTooMany", len(o.ConversationIDs), err)
		}
	}
	refused(watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}})
	startWatch(t, h, watch.Watch{Tenant: "t"}).Stop() // It names no ids.
	all[0].Stop()
	_, stop := subscribe(t, h, "t", "a") // A subscriber and a repeated id do not count either.
	defer stop()
	startWatch(t, h, watch.Watch{Tenant: "t", ConversationIDs: slices.Concat(ids, ids)}).Stop()
	startWatch(t, h, watch.Watch{Tenant: "t", ConversationIDs: ids}).Stop()
	for _, w := range all {
		w.Stop()
	}
	stop()
	if keys, readers := h.Readers(); keys != 0 || readers != 0 || h.Watchers() != 0 {
		t.Errorf("%d keys, %d readers and %d watchers after the end, want none", keys, readers, h.Watchers())
	}
}

// TestTenThousandWatchers: each watcher needs one goroutine, that of its stream. Nothing remains of
// them.
func TestTenThousandWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total = 10_000
		h := watch.New(watch.Options{})
		stop := make(chan struct{})
		before := runtime.NumGoroutine()
		clients := make([]*client, total)
		for i := range clients {
			o := watch.Watch{Tenant: fmt.Sprint("t", i%3), TurnEvents: i%10 == 0}
			if i >= 100 { // Most watchers name one conversation of their own and one in common.
				o.ConversationIDs = []string{fmt.Sprint("c", i), "all"}
			}
			clients[i] = startClient(t, h, o, stop)
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > total {
			t.Errorf("%d goroutines for %d watchers", n, total)
		}
		if n := h.Watchers(); n != total {
			t.Errorf("Watchers() = %d, want %d", n, total)
		}
		for _, c := range clients {
			c.want(t, "HEARTBEAT")
		}
		if n := runtime.NumGoroutine() - before; n > total {
			t.Errorf("%d goroutines for %d waiting watchers", n, total)
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
			t.Errorf("%d keys, %d readers and %d watchers after the end, want none", keys, readers, h.Watchers())
		}
	})
}

// TestWritersDoNotWaitForWatchers: writers continue while clients do not read, however much is
// written.
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
			if i%5 != 0 { // Some clients do not even receive the first heartbeat.
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
				synctest.Wait() // The client that reads must keep up.
			}
		}
		got := describe(reads.received())
		if len(got) != 1001 || got[1000] != "MESSAGE_APPENDED a 999" {
			t.Errorf("reading client received %d changes, last %s", len(got), got[len(got)-1])
		}
		for _, c := range append(stuck, reads) {
			if err := c.disconnect(); !errors.Is(err, errDisconnected) {
				t.Errorf("watcher ended with %v, want errDisconnected", err)
			}
		}
		if n := h.Watchers(); n != 0 {
			t.Errorf("Watchers() = %d, want 0", n)
		}
	})
}

// TestTenantLimit changes the limit of one tenant while it has watchers.
func TestTenantLimit(t *testing.T) {
	limit := 2
	h := watch.New(watch.Options{MaxOf: func(tenant string) int {
		if tenant == "limited" {
			return limit
		}
		return 0
	}})
	start := func(tenant string) (*watch.Watcher, error) { return h.Watch(watch.Watch{Tenant: tenant}) }
	first, err := start("limited")
	if err != nil {
		t.Fatal(err)
	}
	_, stop, err := h.Subscribe("limited", "a")
	if err != nil {
		t.Fatal(err)
	}
	wantLimit := func(want int) {
		t.Helper()
		_, err := start("limited")
		_, _, subscribeErr := h.Subscribe("limited", "a")
		for _, err := range []error{err, subscribeErr} {
			if e, ok := errors.AsType[*watch.TenantLimitError](err); !ok || e.Limit != want {
				t.Errorf("one more = %v, want a TenantLimitError of %d", err, want)
			}
		}
	}
	wantLimit(2)
	other, err := start("other")
	if err != nil {
		t.Errorf("watcher of another tenant = %v", err)
	}
	stop()
	limit = 1
	wantLimit(1)
	first.Stop()
	first.Stop() // Only the first call counts.
	again, err := start("limited")
	if err != nil {
		t.Errorf("watcher after the others have ended = %v", err)
	}
	wantLimit(1)
	again.Stop()
	other.Stop()
	if n := h.Watchers(); n != 0 {
		t.Errorf("Watchers() = %d, want 0", n)
	}
}
