package watch_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// peerHub is the hub of one of several servers on one store, with the state of the store that this server knows: it has
// received all changes after a place. All tenants are in one bucket.
type peerHub struct {
	*watch.Hub

	mu    sync.Mutex
	since store.Place
}

// Since implements store.Ordered.
func (p *peerHub) Since(string) (bucket int, since store.Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 0, p.since
}

// endOf returns the place after a commit of an epoch.
func endOf(epoch string, number uint64) store.Place {
	return store.Place{Epoch: epoch, Number: number, Index: store.LastIndex}
}

// newPeerHub returns the hub of a server that receives the changes after a commit.
func newPeerHub(epoch string, number uint64, retained int) *peerHub {
	p := &peerHub{Hub: watch.NewSmall(watch.Options{}, retained, 1<<20), since: endOf(epoch, number)}
	p.Follow(p)
	return p
}

// miss notifies the hub that the changes up to a place were missed.
func (p *peerHub) miss(through store.Place) {
	p.mu.Lock()
	p.since = through
	p.mu.Unlock()
	p.Committed([]store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, Elsewhere: true}})
}

// sharedCommit is a commit of one tenant.
func sharedCommit(epoch string, number uint64, changes ...store.Change) []store.Change {
	for i := range changes {
		changes[i].Place = store.Place{Epoch: epoch, Number: number, Index: uint32(i)}
	}
	changes[len(changes)-1].Place.Index = store.LastIndex
	return changes
}

// appendEach commits one message of the tenant t for each number, which is its version, too.
func (p *peerHub) appendEach(epoch string, numbers ...int32) {
	for _, n := range numbers {
		p.Committed(sharedCommit(epoch, uint64(n), appendedChange("t", "a", n, "hello")))
	}
}

// TestCursorsOfOtherServers resumes from cursors of one server at another one. The watch continues exactly after the
// cursor, or begins with a GAP if the other server does not have all changes after it.
func TestCursorsOfOtherServers(t *testing.T) {
	appended := func(versions ...int) (all []string) {
		for _, v := range versions {
			all = append(all, fmt.Sprint("MESSAGE_APPENDED a ", v))
		}
		return all
	}
	resumed := func(changes []string) []string { return append([]string{"HEARTBEAT"}, changes...) }
	missed := []string{"GAP", "HEARTBEAT"}
	// The cursor is that of the first server after change 4 of the tenant.
	tests := []struct {
		name  string
		other func() *peerHub
		then  func(*peerHub) // what happens after the watch has begun; may be nil
		want  []string
	}{
		{"all heard", func() *peerHub {
			p := newPeerHub("e", 0, 100)
			p.appendEach("e", 1, 2, 3, 4, 5, 6)
			return p
		}, nil, resumed(appended(5, 6))},
		{"heard since that change", func() *peerHub {
			p := newPeerHub("e", 4, 100)
			p.appendEach("e", 5)
			return p
		}, nil, resumed(appended(5))},
		{"heard since a later change", func() *peerHub {
			p := newPeerHub("e", 5, 100)
			p.appendEach("e", 6)
			return p
		}, nil, missed},
		{"that change dropped", func() *peerHub {
			p := newPeerHub("e", 0, 2)
			p.appendEach("e", 1, 2, 3, 4, 5, 6)
			return p
		}, nil, resumed(appended(5, 6))},
		{"later change dropped", func() *peerHub {
			p := newPeerHub("e", 0, 2)
			p.appendEach("e", 1, 2, 3, 4, 5, 6, 7)
			return p
		}, nil, missed},
		{"same number in another epoch", func() *peerHub {
			p := newPeerHub("f", 0, 100)
			p.appendEach("f", 1, 2, 3, 4, 5, 6)
			return p
		}, nil, missed},
		{"epoch has changed since", func() *peerHub {
			p := newPeerHub("e", 0, 100)
			p.appendEach("e", 1, 2, 3, 4, 5)
			p.miss(endOf("f", 2))
			p.appendEach("f", 3, 4, 5)
			return p
		}, nil, missed},
		{"missed a later change", func() *peerHub {
			p := newPeerHub("e", 0, 100)
			p.appendEach("e", 1, 2, 3, 4)
			p.miss(endOf("e", 5))
			p.appendEach("e", 6)
			return p
		}, nil, missed},
		{"missed earlier changes only", func() *peerHub {
			p := newPeerHub("e", 0, 100)
			p.appendEach("e", 1)
			p.miss(endOf("e", 3))
			p.appendEach("e", 4, 5)
			return p
		}, nil, resumed(appended(5))},
		{"order is not known", func() *peerHub {
			p := newPeerHub("e", 0, 100)
			p.appendEach("e", 1, 2, 3, 4)
			p.miss(store.Place{})
			return p
		}, nil, missed},
		{"does not follow the store", func() *peerHub { return &peerHub{Hub: watch.New(watch.Options{})} }, nil, missed},
		{"told later", func() *peerHub {
			p := newPeerHub("e", 0, 100)
			p.appendEach("e", 1, 2)
			return p
		}, func(p *peerHub) { p.appendEach("e", 3, 4, 5) }, resumed(appended(5))},
		{"loses the change before it is told", func() *peerHub { return newPeerHub("e", 2, 100) }, func(p *peerHub) {
			p.miss(endOf("f", 3))
			p.appendEach("f", 4, 5)
		}, append([]string{"HEARTBEAT", "GAP"}, appended(4, 5)...)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := newPeerHub("e", 0, 100)
				first.appendEach("e", 1, 2, 3, 4)
				other := test.other()
				for _, ids := range [][]string{nil, {"a"}} {
					c := startClient(t, other.Hub, watch.Watch{Tenant: "t", ConversationIDs: ids, Cursor: first.Cursor("t")}, nil)
					if ids != nil {
						_ = c.disconnect() // What happens then is for the first watch only.
						continue
					}
					synctest.Wait()
					if test.then != nil {
						test.then(other)
					}
					c.want(t, test.want...)
				}
			})
		})
	}
}

// TestSharedCursorsOfIdleTenants: the cursor of a tenant without changes is valid at other servers, does not depend on
// the changes of other tenants, and is not valid for them.
func TestSharedCursorsOfIdleTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, other, late := newPeerHub("e", 7, 100), newPeerHub("e", 3, 100), newPeerHub("e", 9, 100)
		cursor := first.Cursor("idle")
		for _, p := range []*peerHub{first, other} {
			p.appendEach("e", 8, 9)
		}
		if again := first.Cursor("idle"); again != cursor {
			t.Errorf("cursor moved from %s to %s with changes of another tenant", cursor, again)
		}
		resumed := startClient(t, other.Hub, watch.Watch{Tenant: "idle", Cursor: cursor}, nil)
		if at := resumed.want(t, "HEARTBEAT"); at != cursor {
			t.Errorf("cursor of the heartbeat = %s, want %s", at, cursor)
		}
		startClient(t, late.Hub, watch.Watch{Tenant: "idle", Cursor: cursor}, nil).want(t, "GAP", "HEARTBEAT")
		startClient(t, first.Hub, watch.Watch{Tenant: "t", Cursor: cursor}, nil).want(t, "GAP", "HEARTBEAT")
		startClient(t, first.Hub, watch.Watch{Tenant: "idle", Cursor: first.Cursor("t")}, nil).want(t, "GAP", "HEARTBEAT")
		change := appendedChange("idle", "b", 1, "hello")
		other.Committed(sharedCommit("e", 10, change))
		resumed.want(t, "MESSAGE_APPENDED b 1")
	})
}

// TestCursorsAfterLateChange: a change whose number was given up comes after later changes. The cursors of these, and its
// own, skip no change.
func TestCursorsAfterLateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeerHub("e", 0, 100)
		live := startClient(t, p.Hub, watch.Watch{Tenant: "t"}, nil)
		live.want(t, "HEARTBEAT")
		p.miss(endOf("e", 6)) // The number 6 did not come.
		live.want(t, "GAP")
		cursors := map[int]string{}
		for i, n := range []int32{7, 8, 6, 9} {
			late := sharedCommit("e", uint64(n), appendedChange("t", "a", n, "hello"))
			p.Committed(late)
			cursors[i] = live.want(t, fmt.Sprint("MESSAGE_APPENDED a ", n))
		}
		for i, want := range [][]string{
			{"MESSAGE_APPENDED a 8", "MESSAGE_APPENDED a 6", "MESSAGE_APPENDED a 9"},
			{"MESSAGE_APPENDED a 9"}, // The late change has the same cursor as the one before it.
			{"MESSAGE_APPENDED a 9"},
			{},
		} {
			resumed := startClient(t, p.Hub, watch.Watch{Tenant: "t", Cursor: cursors[i]}, nil)
			resumed.want(t, append([]string{"HEARTBEAT"}, want...)...)
		}
	})
}

// TestSharedCursorsAdvance: a watch whose conversations do not change receives cursors after the changes of others.
func TestSharedCursorsAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPeerHub("e", 0, 4)
		for _, records := range []bool{false, true} {
			o := watch.Watch{Tenant: "t", ConversationIDs: []string{"b"}, Records: records}
			c := startClient(t, h.Hub, o, nil)
			c.want(t, "HEARTBEAT")
			h.appendEach("e", 1, 2, 3, 4, 5, 6, 7, 8)
			<-time.After(heartbeatInterval)
			if cursor := c.want(t, "HEARTBEAT"); cursor != h.Cursor("t") {
				t.Errorf("cursor = %s, want %s, after the changes of others", cursor, h.Cursor("t"))
			}
			_ = c.disconnect()
			h = newPeerHub("e", 0, 4)
		}
	})
}

// TestSharedCursorOfForgottenTenant: a hub that has removed a tenant with its changes does not accept a cursor before
// the last of these changes, and still accepts one after it.
func TestSharedCursorOfForgottenTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPeerHub("e", 0, 2)
		first := h.Cursor("t")
		h.appendEach("e", 1)
		last := h.Cursor("t")
		for n := range uint64(4) {
			h.Committed(sharedCommit("e", n+2, appendedChange(fmt.Sprint("u", n), "a", 1, "hello")))
		}
		if n := h.RetainedOf("t"); n != 0 {
			t.Fatalf("%d changes are retained, want none", n)
		}
		startClient(t, h.Hub, watch.Watch{Tenant: "t", Cursor: first}, nil).want(t, "GAP", "HEARTBEAT")
		// Another tenant that was removed later has moved the place after which changes are known.
		startClient(t, h.Hub, watch.Watch{Tenant: "t", Cursor: last}, nil).want(t, "GAP", "HEARTBEAT")
		now := startClient(t, h.Hub, watch.Watch{Tenant: "t", Cursor: h.Cursor("t")}, nil)
		now.want(t, "HEARTBEAT")
		h.appendEach("e", 9)
		now.want(t, "MESSAGE_APPENDED a 9")
	})
}

// TestCursorsAfterUnknownOrder: while the order of the store is not known, cursors are valid only at this server, until
// the next GAP.
func TestCursorsAfterUnknownOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPeerHub("e", 0, 100)
		c := startClient(t, h.Hub, watch.Watch{Tenant: "t", Records: true}, nil)
		h.appendEach("e", 1)
		h.miss(store.Place{})
		commit(h.Hub, "t", "a", 2, 3)
		changes := c.received()
		if d := cmp.Diff([]string{
			"HEARTBEAT", "MESSAGE_APPENDED a 1", "GAP", "MESSAGE_APPENDED a 2", "MESSAGE_APPENDED a 3",
		}, describe(changes)); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
		o := watch.Watch{Tenant: "t", Cursor: changes[3].GetCursor()}
		startClient(t, h.Hub, o, nil).want(t, "HEARTBEAT", "MESSAGE_APPENDED a 3")
		h.miss(endOf("f", 5))
		h.appendEach("f", 6)
		c.want(t, "GAP", "MESSAGE_APPENDED a 6")
		startClient(t, h.Hub, o, nil).want(t, "HEARTBEAT", "MESSAGE_APPENDED a 3", "GAP", "MESSAGE_APPENDED a 6")
		o.Cursor = changes[1].GetCursor()
		startClient(t, h.Hub, o, nil).want(t, "GAP", "HEARTBEAT")
		startClient(t, h.Hub, watch.Watch{Tenant: "t", Records: true, Cursor: h.Cursor("t")}, nil).want(t, "HEARTBEAT")
	})
}

// TestSharedCursorOfDroppedRecords: if only changes of records were dropped after a cursor, only a watch with records has a
// GAP.
func TestSharedCursorOfDroppedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, other := newPeerHub("e", 0, 4), newPeerHub("e", 0, 4)
		for _, h := range []*peerHub{first, other} {
			h.appendEach("e", 1)
		}
		cursor := first.Cursor("t")
		other.appendEach("e", 2)
		for n := range int32(5) {
			other.Committed(sharedCommit("e", uint64(n)+3, recordChange("b", n)))
		}
		for records, want := range map[bool][]string{
			false: {"HEARTBEAT", "MESSAGE_APPENDED a 2"},
			true:  {"GAP", "HEARTBEAT", "MESSAGE_APPENDED a 2"},
		} {
			c := startClient(t, other.Hub, watch.Watch{Tenant: "t", Cursor: cursor, Records: records}, nil)
			c.want(t, want...)
			_ = c.disconnect()
		}
	})
}

// TestResumeAtOtherServer commits changes of messages and of records in a random order, several in a commit. Two
// servers receive them, one of them later. A watch that resumes at the other server, from the cursor of any response,
// receives exactly the changes after it.
func TestResumeAtOtherServer(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) { resumeAtOtherServer(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d failed", seed)
		}
	}
}

func resumeAtOtherServer(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	coin := func() bool { return random.IntN(2) == 0 }
	o := watch.Watch{Tenant: "t", Records: coin(), TurnEvents: coin()}
	if coin() {
		o.ConversationIDs = []string{"a"}
	}
	var commits [][]store.Change
	for number := range uint64(1 + random.IntN(20)) {
		var changes []store.Change
		for range 1 + random.IntN(3) {
			id := []string{"a", "b"}[random.IntN(2)]
			changes = append(changes, appendedChange("t", id, int32(len(commits)), "hello"))
		}
		for range random.IntN(3) {
			changes = append(changes, recordChange([]string{"a", "b"}[random.IntN(2)], int32(len(commits))))
		}
		commits = append(commits, sharedCommit("e", 10+2*number, changes...))
	}
	first, other := newPeerHub("e", 9, 1000), newPeerHub("e", uint64(random.IntN(10)), 1000)
	c := startClient(t, first.Hub, o, nil)
	for _, changes := range commits {
		first.Committed(changes)
		if coin() {
			synctest.Wait()
		}
		if o.TurnEvents && coin() {
			first.TurnEvent("t", "a", textEvent(1))
		}
	}
	got := c.received()
	_ = c.disconnect()
	heard := random.IntN(len(commits) + 1)
	for _, changes := range commits[:heard] {
		other.Committed(changes)
	}
	var clients []*client
	for _, change := range got {
		o.Cursor = change.GetCursor()
		clients = append(clients, startClient(t, other.Hub, o, nil))
	}
	synctest.Wait()
	for _, changes := range commits[heard:] {
		other.Committed(changes)
	}
	for i, c := range clients {
		want := []string{"HEARTBEAT"}
		for _, change := range got[i+1:] {
			if change.GetTurnEvent() == nil { // Events are not sent again.
				want = append(want, describe([]*parleyv1.ConversationChange{change})...)
			}
		}
		if d := cmp.Diff(want, describe(c.received())); d != "" {
			t.Errorf("resumed after %d of %d changes, %d commits heard (-want +got):\n%s", i, len(got), heard, d)
		}
		_ = c.disconnect()
	}
}
