package watch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// isWoken reports whether the channel has a value when all goroutines are blocked.
func isWoken(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func subscribe(t *testing.T, h *watch.Hub, tenant, id string) (changed <-chan struct{}, stop func()) {
	t.Helper()
	changed, stop, err := h.Subscribe(tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	return changed, stop
}

func TestSubscribeWakesForOneConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		wanted, stop := subscribe(t, h, "t", "c")
		other, stopOther := subscribe(t, h, "t", "d")
		foreign, stopForeign := subscribe(t, h, "u", "c")
		// Several changes send one value, even without a reader of the channel.
		h.Committed([]store.Change{{Tenant: "t", ConversationID: "c"}, {Tenant: "t", ConversationID: "c"}})
		if !isWoken(wanted) || isWoken(wanted) {
			t.Error("two changes did not send exactly one value")
		}
		if isWoken(other) || isWoken(foreign) {
			t.Error("woken by a change of another conversation")
		}
		h.Committed([]store.Change{{Tenant: "t", ConversationID: "c"}})
		if !isWoken(wanted) {
			t.Error("not woken again")
		}
		if n := h.Watchers(); n != 3 {
			t.Errorf("Watchers() = %d, want 3", n)
		}
		for _, end := range []func(){stop, stop, stopOther, stopForeign} {
			end()
		}
		if n := h.Watchers(); n != 0 {
			t.Errorf("Watchers() = %d after all have stopped, want 0", n)
		}
		h.Committed([]store.Change{{Tenant: "t", ConversationID: "c"}})
		if isWoken(wanted) {
			t.Error("woken after stopping")
		}
	})
}

func TestCursorHasPositionAndServerStart(t *testing.T) {
	h := watch.New(watch.Options{})
	before := h.Cursor("t")
	if again := h.Cursor("t"); again != before {
		t.Errorf("cursor moved from %s to %s without a change", before, again)
	}
	h.Committed([]store.Change{{Tenant: "t", ConversationID: "c"}})
	if after := h.Cursor("t"); after == before {
		t.Error("cursor did not move with a change")
	}
	if other := watch.New(watch.Options{}).Cursor("t"); other == before {
		t.Error("two starts have the same cursor")
	}
}

// TestCursorsOfTenants checks that a cursor does not depend on the changes of other tenants, and is not valid for them.
func TestCursorsOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		commit(h, "t", "a", 1, 2)
		before := h.Cursor("t")
		absent := h.Cursor("absent")
		idle := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		idle.want(t, "HEARTBEAT")
		commit(h, "u", "a", 1, 2, 3)
		commit(h, "v", "a", 1)
		if after := h.Cursor("t"); after != before {
			t.Errorf("cursor moved from %s to %s with changes of other tenants", before, after)
		}
		if after := h.Cursor("absent"); after != absent {
			t.Errorf("cursor of a tenant without changes moved from %s to %s", absent, after)
		}
		<-time.After(heartbeatInterval)
		if cursor := idle.want(t, "HEARTBEAT"); cursor != before {
			t.Errorf("cursor of a heartbeat = %s after changes of other tenants, want %s", cursor, before)
		}
		for _, cursor := range []string{h.Cursor("u"), h.Cursor("v"), h.Cursor("w")} {
			c := startClient(t, h, watch.Watch{Tenant: "t", Cursor: cursor}, nil)
			if last := c.want(t, "GAP", "HEARTBEAT"); last != before {
				t.Errorf("watch from the cursor of another tenant begins at %s, want %s", last, before)
			}
		}
		commit(h, "absent", "a", 1)
		startClient(t, h, watch.Watch{Tenant: "absent", Cursor: absent}, nil).want(t, "HEARTBEAT", "MESSAGE_APPENDED a 1")
		if n, other := h.TenantWatchers("t"), h.TenantWatchers("u"); n != 4 || other != 0 {
			t.Errorf("TenantWatchers = %d and %d, want 4 and 0", n, other)
		}
	})
}
