package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// hold makes ids ephemeral.
func (f *fixture) hold(ids ...string) {
	f.t.Helper()
	f.holdFor(time.Second, ids...)
}

// holdFor makes ids ephemeral; after is the time from the end of the process to their deletion.
func (f *fixture) holdFor(after time.Duration, ids ...string) {
	f.t.Helper()
	h := &store.Hold{Tenant: tenant, ConversationIDs: ids, DeleteAfter: after}
	if err := f.store.Hold(f.t.Context(), h); err != nil {
		f.t.Fatalf("Hold %v: %v", ids, err)
	}
}

// release undoes a hold.
func (f *fixture) release(after time.Duration, ids ...string) {
	f.t.Helper()
	h := &store.Hold{Tenant: tenant, ConversationIDs: ids, DeleteAfter: after}
	if err := f.store.Release(f.t.Context(), h); err != nil {
		f.t.Fatalf("Release %v: %v", ids, err)
	}
}

// visible checks that every method finds the conversation.
func (f *fixture) visible(id string) {
	f.t.Helper()
	f.header(id)
	for _, l := range []store.List{{}, {OldestFirst: true}, {Order: byUpdateTime}} {
		l.PageSize = 10
		if got := slices.Concat(f.pages(l)...); !slices.Contains(got, id) {
			f.t.Errorf("List(%+v) = %v, want %s in it", l, got, id)
		}
	}
	purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant, DryRun: true})
	if err != nil || !slices.Contains(purged.SampleIDs, id) {
		f.t.Errorf("Purge, dry run = %v, %v, want %s in it", purged.SampleIDs, err, id)
	}
	f.do(&store.Update{
		ConversationID: id, Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: f.clock.Now().String()},
	})
	if result := f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: id}, OrGet: true}); result.Created {
		f.t.Errorf("Create(%s) with OrGet created a conversation, want the existing one", id)
	}
}

// ephemeralCases returns ways to treat conversation "a", whose ttl is one hour, with the expected
// lifetime and change.
func ephemeralCases() map[string]ephemeralCase {
	const never = 0
	deleteA := func(f *fixture) { f.do(&store.Delete{ConversationID: "a"}) }
	return map[string]ephemeralCase{
		"held": {func(f *fixture) { f.hold("a") }, never, ""},
		"held while a turn runs": {func(f *fixture) {
			f.beginTurn("a", "turn")
			f.hold("a")
			f.clock.Advance(2 * time.Hour)
			f.endTurn("a", "turn")
		}, never, ""},
		"held, with a new ttl": {func(f *fixture) {
			f.hold("a")
			f.do(&store.Update{ConversationID: "a", Fields: []string{"retention.ttl"}, Values: &parleyv1.Conversation{
				Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)},
			}})
		}, never, ""},
		"released": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
		}, time.Minute, ephemeralEnded},
		"released with a long delay": {func(f *fixture) {
			f.hold("a")
			f.release(30*time.Hour, "a")
		}, 30 * time.Hour, ephemeralEnded},
		"released while a turn runs": {func(f *fixture) {
			f.hold("a")
			f.beginTurn("a", "turn")
			f.release(2*time.Hour, "a")
		}, 2 * time.Hour, ephemeralEnded},
		"appended to after release": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.append("a", user("hello"))
		}, time.Minute - time.Millisecond, ephemeralEnded},
		"held twice": {func(f *fixture) { f.hold("a"); f.hold("a"); f.release(time.Minute, "a") }, never, ""},
		"released twice": {func(f *fixture) {
			f.hold("a")
			f.hold("a")
			f.release(time.Hour, "a")
			f.release(time.Minute, "a")
		}, time.Minute, ephemeralEnded},
		"named twice in a hold": {func(f *fixture) {
			f.hold("a", "a")
			f.release(time.Minute, "a")
		}, time.Minute, ephemeralEnded},
		"named twice in release": {func(f *fixture) {
			f.hold("a")
			f.hold("a")
			f.release(time.Minute, "a", "b", "a")
		}, never, ""},
		"held again": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute - 1)
			f.hold("a")
		}, never, ""},
		"released again": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.hold("a")
			f.release(2*time.Hour, "a")
		}, 2 * time.Hour, ephemeralEnded},
		"released more often than held": {func(f *fixture) {
			f.hold("a")
			f.release(time.Hour, "a")
			f.release(time.Minute, "a")
		}, time.Hour, ephemeralEnded},
		"never held": {func(f *fixture) {
			f.release(time.Minute, "a")
			f.release(0, "a")
		}, time.Hour, "EXPIRED"},
		"held after a release":         {func(f *fixture) { f.release(time.Minute, "a"); f.hold("a") }, never, ""},
		"another conversation is held": {func(f *fixture) { f.hold("b"); f.release(0, "b") }, time.Hour, "EXPIRED"},
		"recreated":                    {func(f *fixture) { f.hold("a"); deleteA(f); f.create("a") }, never, ""},
		"recreated and released": {func(f *fixture) {
			f.hold("a")
			deleteA(f)
			f.create("a")
			f.release(time.Minute, "a")
		}, time.Minute, ephemeralEnded},
		"recreated before its delete time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			deleteA(f)
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"created after release": {func(f *fixture) {
			deleteA(f)
			f.hold("a")
			f.release(time.Minute, "a")
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"created between releases": {func(f *fixture) {
			deleteA(f)
			f.hold("a")
			f.hold("a")
			f.release(0, "a")
			f.create("a")
			f.release(time.Minute, "a")
		}, time.Minute, ephemeralEnded},
		"held before its creation": {func(f *fixture) {
			deleteA(f)
			f.hold("a")
			f.clock.Advance(2 * time.Hour)
			f.create("a")
		}, never, ""},
		"created after the delete time": {func(f *fixture) {
			deleteA(f)
			f.hold("a")
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute)
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"recreated after release without delay": {func(f *fixture) {
			f.hold("a")
			f.release(0, "a")
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"purged and recreated": {func(f *fixture) {
			f.hold("a")
			if purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant}); err != nil || purged.Count != 1 {
				f.t.Fatalf("Purge: %v, %v", purged, err)
			}
			f.create("a")
		}, never, ""},
		"overwritten": {func(f *fixture) {
			f.hold("a")
			over := f.newImport("a", time.Minute)
			over.Overwrite = true
			f.do(over)
		}, never, ""},
		"imported although its ttl has passed": {func(f *fixture) {
			deleteA(f)
			f.hold("a")
			f.do(f.newImport("a", 9*time.Hour))
		}, never, ""},
		"imported after release": {func(f *fixture) {
			deleteA(f)
			f.hold("a")
			f.release(time.Minute, "a")
			f.expectError(f.newImport("a", 9*time.Hour), store.ErrExpired)
			f.do(f.newImport("a", time.Hour))
		}, time.Hour + 2*time.Second, "EXPIRED"},
		"overwritten before its delete time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			over := f.newImport("a", 9*time.Hour)
			over.Overwrite = true
			f.expectError(over, store.ErrExpired)
			over = f.newImport("a", time.Hour)
			over.Overwrite = true
			f.do(over)
		}, time.Hour + 2*time.Second, "EXPIRED"},
		"purged and recreated before its delete time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			if purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant}); err != nil || purged.Count != 1 {
				f.t.Fatalf("Purge: %v, %v", purged, err)
			}
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"imported after its delete time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute)
			f.expectError(f.newImport("a", 9*time.Hour), store.ErrExpired)
			f.do(f.newImport("a", time.Hour))
		}, time.Hour + 2*time.Second, "EXPIRED"},
	}
}

// ephemeralCase is a way to treat a conversation, its lifetime after that, and the change that
// reports its end. A lifetime of 0 means forever. change is "EXPIRED", or ephemeralEnded for
// DELETED.
type ephemeralCase struct {
	do       func(*fixture)
	lifetime time.Duration
	change   string
}

// law13Ephemeral treats a conversation in each way and then removes it in each way in which the
// store can notice its end.
func (s Subject) law13Ephemeral(t *testing.T) {
	for name, test := range ephemeralCases() {
		if test.lifetime == 0 {
			t.Run(name, func(t *testing.T) { s.neverExpires(t, test) })
			continue
		}
		for how, find := range map[string]func(*fixture){
			"swept": func(f *fixture) {
				f.clock.Advance(sweepSlack)
				f.sweep()
			},
			"recreated":  func(f *fixture) { f.create("a") },
			"held again": func(f *fixture) { f.hold("a") },
			"imported":   func(f *fixture) { f.do(f.newImport("a", time.Minute)) },
			"replaced at capacity": func(f *fixture) {
				f.create("c")
				f.create("d")
				f.settle()
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) { s.expiresAfter(t, test, find) })
		}
	}
}

// neverExpires checks that conversation "a" neither expires nor is evicted.
func (s Subject) neverExpires(t *testing.T, test ephemeralCase) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
	f.create("a")
	test.do(f)
	f.clock.Advance(72 * time.Hour)
	f.sweep()
	f.visible("a")
	f.create("c")
	f.create("d")
	f.settle()
	f.visible("a")
	f.missing("c")
}

// expiresAfter checks that conversation "a" ends exactly when its lifetime has passed.
func (s Subject) expiresAfter(t *testing.T, test ephemeralCase, find func(*fixture)) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
	f.create("a")
	test.do(f)
	f.clock.Advance(test.lifetime - 1)
	f.sweep()
	f.visible("a")
	version, count := f.header("a").GetVersion(), f.header("a").GetMessageCount()
	f.clock.Advance(1)
	f.invisible("a")
	before := f.stats()
	find(f)
	want := fmt.Sprintf("DELETED a version %d count %d trimmed 0%s", version, count, test.change)
	expired := int64(0)
	if test.change == "EXPIRED" {
		want, expired = fmt.Sprintf("EXPIRED a version %d count %d trimmed 0", version, count), 1
	}
	changes := f.observer.drain()
	if got := summaries(changes); len(got) == 0 || !slices.Contains(got, want) {
		t.Errorf("changes = %v, want %s in them", got, want)
	}
	if after := f.stats(); after.Expired != before.Expired+expired || after.Evicted != 0 {
		t.Errorf("Stats() = %+v, before the removal %+v", after, before)
	}
	if s.Durable {
		f.reopen(nil)
		f.abandoned(nil)
	}
}
