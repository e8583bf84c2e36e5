package watch_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// TestCursorTooOld: a GAP comes first, then a heartbeat with the cursor from which the stream
// continues.
func TestCursorTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, 4, 1<<20)
		var cursors []string
		for version := range int32(10) {
			cursors = append(cursors, h.Cursor("t"))
			commit(h, "t", "a", version)
		}
		for i, cursor := range cursors {
			for _, ids := range [][]string{nil, {"a"}, {"b"}} {
				c := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: ids, Cursor: cursor}, nil)
				got, want := c.received(), []string{"HEARTBEAT"}
				at := cursor
				if i < len(cursors)-4 {
					at, want = h.Cursor("t"), []string{"GAP", "HEARTBEAT"}
				} else if !slices.Equal(ids, []string{"b"}) {
					for version := i; version < len(cursors); version++ {
						want = append(want, fmt.Sprint("MESSAGE_APPENDED a ", version))
					}
				}
				if d := cmp.Diff(want, describe(got)); d != "" {
					t.Fatalf("cursor %d, ids %v (-want +got):\n%s", i, ids, d)
				}
				if got[0].GetCursor() != at {
					t.Errorf("cursor %d: first response = %v, cursor of the hub = %s", i, got[0], h.Cursor("t"))
				}
				_ = c.disconnect()
			}
		}
	})
}

func TestSlowWatcherReceivesGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, 4, 1<<20)
		c := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		c.want(t, "HEARTBEAT")
		c.pauseReading()
		commit(h, "t", "a", 1) // The client is about to receive it.
		synctest.Wait()
		commit(h, "t", "a", 2, 3, 4, 5)
		c.resumeReading()
		c.want(t, "MESSAGE_APPENDED a 1", "MESSAGE_APPENDED a 2", "MESSAGE_APPENDED a 3", "MESSAGE_APPENDED a 4",
			"MESSAGE_APPENDED a 5")
		c.pauseReading()
		commit(h, "t", "a", 6)
		synctest.Wait()
		commit(h, "t", "a", 7, 8, 9, 10, 11)
		c.resumeReading()
		if cursor := c.want(t, "MESSAGE_APPENDED a 6", "GAP"); cursor != h.Cursor("t") {
			t.Errorf("cursor of the GAP = %s, want %s", cursor, h.Cursor("t"))
		}
		commit(h, "t", "a", 12)
		c.want(t, "MESSAGE_APPENDED a 12")
	})
}

// TestChangesOfOthersCauseNoGap: a watcher of a conversation without changes misses nothing, even
// while it does not read.
func TestChangesOfOthersCauseNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 4
		h := watch.NewSmall(watch.Options{}, limit, 1<<20)
		idle := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"quiet"}, TurnEvents: true}, nil)
		tenant := startClient(t, h, watch.Watch{Tenant: "quiet"}, nil)
		stalled := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"quiet"}}, nil)
		for _, c := range []*client{idle, tenant, stalled} {
			c.want(t, "HEARTBEAT")
		}
		commit(h, "t", "quiet", 1)
		idle.want(t, "MESSAGE_APPENDED quiet 1")
		stalled.want(t, "MESSAGE_APPENDED quiet 1")
		stalled.pauseReading()
		commit(h, "t", "quiet", 2) // The client is about to receive it.
		idle.want(t, "MESSAGE_APPENDED quiet 2")
		for range int32(10) {
			for version := range int32(limit) {
				commit(h, "t", "a", version)
				h.TurnEvent("t", "a", textEvent(version))
			}
			synctest.Wait()
		}
		stalled.resumeReading()
		stalled.want(t, "MESSAGE_APPENDED quiet 2")
		commit(h, "t", "quiet", 3)
		idle.want(t, "MESSAGE_APPENDED quiet 3")
		stalled.want(t, "MESSAGE_APPENDED quiet 3")
		commit(h, "quiet", "a", 1)
		tenant.want(t, "MESSAGE_APPENDED a 1")
	})
}

// TestBatchLargerThanFeed: a batch that exceeds the feed's limit is a GAP for watchers that want an
// entry of it, and nothing for the others. Watchers that read fast enough receive the batch instead.
func TestBatchLargerThanFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 4
		h := watch.NewSmall(watch.Options{}, limit, 1<<20)
		quiet := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"quiet"}}, nil)
		tenant := startClient(t, h, watch.Watch{Tenant: "quiet"}, nil)
		one := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}}, nil)
		all := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		changed, stop := subscribe(t, h, "t", "a")
		defer stop()
		for _, c := range []*client{quiet, tenant, one, all} {
			c.want(t, "HEARTBEAT")
		}
		for _, c := range []*client{one, all} {
			c.pauseReading()
		}
		h.Committed([]store.Change{appendedChange("t", "a", 0, "")})
		synctest.Wait() // Both hold the first change.
		var batch []store.Change
		for version := range int32(2*limit + 1) {
			batch = append(batch, appendedChange("t", "a", 1+version, ""))
		}
		h.Committed(batch)
		for _, c := range []*client{one, all} {
			c.resumeReading()
			if cursor := c.want(t, "MESSAGE_APPENDED a 0", "GAP"); cursor != h.Cursor("t") {
				t.Errorf("cursor of the GAP = %s, want %s", cursor, h.Cursor("t"))
			}
		}
		if got := h.Gaps(); got != 2 {
			t.Errorf("Gaps() = %d, want 2, one for each watcher", got)
		}
		if !isWoken(changed) {
			t.Error("subscriber not woken")
		}
		quiet.want(t)
		tenant.want(t)
		h.Committed([]store.Change{
			appendedChange("t", "a", 100, ""), appendedChange("t", "quiet", 1, ""),
			appendedChange("quiet", "a", 1, ""),
		})
		quiet.want(t, "MESSAGE_APPENDED quiet 1")
		tenant.want(t, "MESSAGE_APPENDED a 1")
		one.want(t, "MESSAGE_APPENDED a 100")
		all.want(t, "MESSAGE_APPENDED a 100", "MESSAGE_APPENDED quiet 1")
	})
}

// TestStoreMissedChanges: when the store has missed changes, all watchers of all tenants receive a GAP in its place
// among the changes, subscribers are woken, and a watcher that resumes from before it receives it, too.
func TestStoreMissedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		before, unused := h.Cursor("t"), h.Cursor("later")
		tenant := startClient(t, h, watch.Watch{Tenant: "t", Records: true}, nil)
		one := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}, TurnEvents: true}, nil)
		other := startClient(t, h, watch.Watch{Tenant: "u", ConversationIDs: []string{"b"}}, nil)
		changed, stop := subscribe(t, h, "t", "a")
		defer stop()
		for _, c := range []*client{tenant, one, other} {
			c.want(t, "HEARTBEAT")
		}
		commit(h, "t", "x", 1)
		h.Committed([]store.Change{
			{Kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, Elsewhere: true}, appendedChange("t", "x", 2, ""),
		})
		tenant.want(t, "MESSAGE_APPENDED x 1", "GAP", "MESSAGE_APPENDED x 2")
		one.want(t, "GAP")
		other.want(t, "GAP")
		if !isWoken(changed) {
			t.Error("subscriber not woken")
		}
		if got := h.Gaps(); got != 3 {
			t.Errorf("Gaps() = %d, want 3, one for each watcher", got)
		}
		again := startClient(t, h, watch.Watch{Tenant: "t", Cursor: before}, nil)
		again.want(t, "HEARTBEAT", "MESSAGE_APPENDED x 1", "GAP", "MESSAGE_APPENDED x 2")
		late := startClient(t, h, watch.Watch{Tenant: "later", Cursor: unused}, nil)
		late.want(t, "GAP", "HEARTBEAT")
	})
}
