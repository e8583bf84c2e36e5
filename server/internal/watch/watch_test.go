package watch_test

import (
	"testing"
	"testing/synctest"

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
	before := h.Cursor()
	if again := h.Cursor(); again != before {
		t.Errorf("cursor moved from %s to %s without a change", before, again)
	}
	h.Committed([]store.Change{{Tenant: "t", ConversationID: "c"}})
	if after := h.Cursor(); after == before {
		t.Error("cursor did not move with a change")
	}
	if other := watch.New(watch.Options{}).Cursor(); other == before {
		t.Error("two starts have the same cursor")
	}
}
