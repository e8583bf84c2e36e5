package watch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

const (
	created = parleyv1.ChangeKind_CHANGE_KIND_CREATED
	deleted = parleyv1.ChangeKind_CHANGE_KIND_DELETED
	expired = parleyv1.ChangeKind_CHANGE_KIND_EXPIRED
	evicted = parleyv1.ChangeKind_CHANGE_KIND_EVICTED
)

// endingTests is a hub with a clock.
type endingTests struct {
	*testing.T
	hub *watch.Hub
	now time.Time
}

func newEndingTests(t *testing.T, count, bytes int) *endingTests {
	t.Helper()
	return &endingTests{t, watch.NewForgetful(count, bytes), time.Unix(1_800_000_000, 0)}
}

// commit commits a change of a conversation.
func (e *endingTests) commit(kind parleyv1.ChangeKind, tenant, id string) {
	e.hub.Committed([]store.Change{{Tenant: tenant, Kind: kind, ConversationID: id, Time: e.now}})
}

// check checks whether the hub remembers an ending. The kind UNSPECIFIED means that it does not.
func (e *endingTests) check(tenant, id string, kind parleyv1.ChangeKind, at time.Time) {
	e.Helper()
	got, ok := e.hub.Ended(tenant, id, e.now)
	want := watch.Ending{Kind: kind, At: at}
	if kind == 0 {
		want = watch.Ending{}
	}
	if got != want || ok != (kind != 0) {
		e.Errorf("Ended(%s, %s) = %v, %t, want %v", tenant, id, got, ok, want)
	}
}

func TestEnded(t *testing.T) {
	e := newEndingTests(t, 100, 1<<20)
	began := e.now
	e.commit(created, "t", "a")
	e.commit(parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, "t", "a")
	e.commit(parleyv1.ChangeKind_CHANGE_KIND_CLEARED, "t", "a")
	e.check("t", "a", 0, began)
	e.commit(evicted, "t", "a")
	e.commit(expired, "t", "b")
	e.commit(deleted, "t", "c")
	e.now = e.now.Add(time.Minute)
	e.commit(deleted, "t", "b") // Of a later conversation, whose creation was in the same commit as its end, say.
	e.check("t", "a", evicted, began)
	e.check("t", "b", deleted, e.now)
	e.check("t", "c", deleted, began)
	e.check("other", "a", 0, began)
	e.check("t", "d", 0, began)

	e.commit(created, "t", "a")
	e.check("t", "a", 0, began)

	// Of one commit, the last change of a conversation counts.
	e.hub.Committed([]store.Change{
		{Tenant: "t", Kind: expired, ConversationID: "c", Time: e.now},
		{Tenant: "t", Kind: created, ConversationID: "c", Time: e.now},
		{Tenant: "u", Kind: evicted, ConversationID: "c", Time: e.now},
	})
	e.check("t", "c", 0, began)
	e.check("u", "c", evicted, e.now)

	at := e.now
	e.now = e.now.Add(time.Hour)
	e.check("u", "c", evicted, at)
	e.now = e.now.Add(1)
	e.check("u", "c", 0, at)
	e.check("t", "b", 0, at)
	e.commit(created, "u", "c")
	e.commit(evicted, "v", "x")
	if endings, tenants, bytes := e.hub.Endings(); endings != 1 || tenants != 1 || bytes == 0 {
		t.Errorf("an hour later the hub has %d endings of %d tenants in %d bytes, want the new one", endings, tenants,
			bytes)
	}
	e.commit(created, "v", "x")
	if endings, tenants, bytes := e.hub.Endings(); endings != 0 || tenants != 0 || bytes != 0 {
		t.Errorf("the hub has %d endings of %d tenants in %d bytes, want none", endings, tenants, bytes)
	}
}

func TestEndedLimits(t *testing.T) {
	t.Run("count", func(t *testing.T) {
		e := newEndingTests(t, 10, 1<<20)
		for i := range 25 {
			e.commit(evicted, "t", fmt.Sprint("c", i))
		}
		e.check("t", "c14", 0, e.now)
		e.check("t", "c15", evicted, e.now)
		e.check("t", "c24", evicted, e.now)
	})
	t.Run("bytes", func(t *testing.T) {
		e := newEndingTests(t, 1000, 10_000)
		long := strings.Repeat("x", 700)
		for i := range 25 {
			e.commit(evicted, "t", fmt.Sprint(long, i))
			if _, _, bytes := e.hub.Endings(); bytes > 10_000 {
				t.Fatalf("%d bytes, want at most 10000", bytes)
			}
		}
		e.check("t", fmt.Sprint(long, 14), 0, e.now)
		e.check("t", fmt.Sprint(long, 24), evicted, e.now)
	})
	t.Run("tenants", func(t *testing.T) {
		e := newEndingTests(t, 12, 1<<20)
		for i := range 3 {
			e.commit(evicted, "quiet", fmt.Sprint("c", i))
			e.commit(expired, "calm", fmt.Sprint("c", i))
		}
		for i := range 100 {
			e.commit(evicted, "loud", fmt.Sprint("c", i))
		}
		for i := range 3 {
			e.check("quiet", fmt.Sprint("c", i), evicted, e.now)
			e.check("calm", fmt.Sprint("c", i), expired, e.now)
		}
		e.check("loud", "c93", 0, e.now)
		e.check("loud", "c94", evicted, e.now)
	})
	t.Run("more tenants than endings", func(t *testing.T) {
		e := newEndingTests(t, 5, 1<<20)
		for i := range 20 {
			e.commit(evicted, fmt.Sprint("t", i), "c")
		}
		e.check("t19", "c", evicted, e.now)
		if endings, tenants, _ := e.hub.Endings(); endings != 5 || tenants != 5 {
			t.Errorf("%d endings of %d tenants, want 5 of 5", endings, tenants)
		}
	})
}
