package watch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// recordChange returns the change of a record of the tenant t.
func recordChange(id string, version int32) store.Change {
	return store.Change{
		Tenant: "t", ConversationID: id, Version: version, Time: time.Unix(int64(version), 0),
		Kind:   parleyv1.ChangeKind_CHANGE_KIND_RECORD,
		Record: &parleyv1.RecordChange{Key: fmt.Sprint("key", version), Revision: int64(version), Deleted: version%2 == 0},
	}
}

// TestRecords: a watcher that asks for records receives their changes after the other changes of the same version, and
// others do not receive them.
func TestRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		with := startClient(t, h, watch.Watch{Tenant: "t", Records: true}, nil)
		named := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"b"}, Records: true}, nil)
		without := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		other := startClient(t, h, watch.Watch{Tenant: "other", Records: true}, nil)
		h.Committed([]store.Change{
			appendedChange("t", "a", 1, "hello"), recordChange("a", 1), recordChange("a", 1),
			recordChange("b", 1), appendedChange("t", "a", 2, "hello"),
		})
		changes := with.received()
		if d := cmp.Diff([]string{
			"HEARTBEAT", "MESSAGE_APPENDED a 1", "RECORD a 1", "RECORD a 1", "RECORD b 1", "MESSAGE_APPENDED a 2",
		}, describe(changes)); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
		want := &parleyv1.RecordChange{Key: "key1", Revision: 1}
		if got := changes[2].GetRecord(); !proto.Equal(got, want) || changes[1].GetRecord() != nil {
			t.Errorf("record = %v, want %v", got, want)
		}
		named.want(t, "HEARTBEAT", "RECORD b 1")
		without.want(t, "HEARTBEAT", "MESSAGE_APPENDED a 1", "MESSAGE_APPENDED a 2")
		other.want(t, "HEARTBEAT")
		h.Committed([]store.Change{recordChange("b", 2)})
		with.want(t, "RECORD b 2")
		named.want(t, "RECORD b 2")
		without.want(t)
		_, _ = with.disconnect(), named.disconnect()
		_, _ = without.disconnect(), other.disconnect()
		if keys, readers := h.Readers(); keys+readers > 0 {
			t.Errorf("%d keys and %d readers after the last watcher, want none", keys, readers)
		}
	})
}

// TestRecordsWakeSubscribers: a write of records changes the version of a conversation. The store reports that as
// another change, which precedes those of the records.
func TestRecordsWakeSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		changed, stop := subscribe(t, h, "t", "a")
		defer stop()
		updated := store.Change{
			Tenant: "t", ConversationID: "a", Version: 2, Kind: parleyv1.ChangeKind_CHANGE_KIND_UPDATED,
		}
		h.Committed([]store.Change{updated, recordChange("a", 2)})
		if !isWoken(changed) || isWoken(changed) {
			t.Error("a write of a record did not send exactly one value")
		}
	})
}

// TestRecordsDropNoChanges: however many records are written, a watcher that does not ask for them receives no GAP. One
// that asks receives a GAP if their changes were dropped.
func TestRecordsDropNoChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.NewSmall(watch.Options{}, 4, 1<<20)
		commit(h, "t", "a", 1)
		from := h.Cursor("t")
		commit(h, "t", "a", 2)
		for version := range int32(20) {
			h.Committed([]store.Change{recordChange("b", version)})
		}
		for records, want := range map[bool][]string{
			false: {"HEARTBEAT", "MESSAGE_APPENDED a 2"},
			true:  {"GAP", "HEARTBEAT", "MESSAGE_APPENDED a 2"},
		} {
			c := startClient(t, h, watch.Watch{Tenant: "t", Cursor: from, Records: records}, nil)
			c.want(t, want...)
			_ = c.disconnect()
		}
		slow := startClient(t, h, watch.Watch{Tenant: "t", Records: true}, nil)
		slow.want(t, "HEARTBEAT")
		slow.pauseReading()
		h.Committed([]store.Change{recordChange("b", 20)}) // The client is about to receive it.
		synctest.Wait()
		for version := int32(21); version <= 40; version++ {
			h.Committed([]store.Change{recordChange("b", version)})
		}
		slow.resumeReading()
		slow.want(t, "RECORD b 20", "GAP")
		h.Committed([]store.Change{recordChange("b", 41)})
		slow.want(t, "RECORD b 41")
		_ = slow.disconnect()
	})
}

// TestResumeWithRecords commits changes of messages and of records in a random order, to watchers that pause at random.
// Each watcher receives all of them in the order of commit, and one that resumes from the cursor of any change receives
// exactly those after it.
func TestResumeWithRecords(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) { resumeWithRecords(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d failed", seed)
		}
	}
}

func resumeWithRecords(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	coin := func() bool { return random.IntN(2) == 0 }
	h := watch.New(watch.Options{})
	o := watch.Watch{Tenant: "t", Records: true, TurnEvents: coin()}
	if coin() {
		o.ConversationIDs = []string{"a"}
	}
	c := startClient(t, h, o, nil)
	want, paused := []string{"HEARTBEAT"}, false
	for version := range int32(1 + random.IntN(30)) {
		var changes []store.Change
		for range 1 + random.IntN(3) {
			id := []string{"a", "b"}[random.IntN(2)]
			change, kind := appendedChange("t", id, version, "hello"), "MESSAGE_APPENDED"
			if coin() {
				change, kind = recordChange(id, version), "RECORD"
			}
			changes = append(changes, change)
			if o.ConversationIDs == nil || id == "a" {
				want = append(want, fmt.Sprint(kind, " ", id, " ", version))
			}
		}
		h.Committed(changes)
		if coin() {
			if paused = !paused; paused {
				c.pauseReading()
			} else {
				c.resumeReading()
			}
		}
		if coin() {
			synctest.Wait()
		}
	}
	if paused {
		c.resumeReading()
	}
	got := c.received()
	if d := cmp.Diff(want, describe(got)); d != "" {
		t.Fatalf("changes (-want +got):\n%s", d)
	}
	_ = c.disconnect()
	for i, change := range got {
		o.Cursor = change.GetCursor()
		c := startClient(t, h, o, nil)
		if d := cmp.Diff(want[i+1:], describe(c.received())[1:]); d != "" {
			t.Errorf("resumed after %d changes (-want +got):\n%s", i, d)
		}
		_ = c.disconnect()
	}
}
