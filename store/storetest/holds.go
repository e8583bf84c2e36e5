package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// holds tests the properties of Hold and Release that law 13 does not state.
func (s Subject) holds(t *testing.T) {
	t.Run("released without delay", s.releaseAtOnce)
	t.Run("released while a turn runs", s.releaseTurn)
	t.Run("turn starts before the sweep", s.beginAfterDeleteTime)
	t.Run("an expired conversation does not become visible again", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("hello"))
		f.clock.Advance(time.Hour)
		f.observer.drain()
		f.hold("a")
		same(t, "changes", summaries(f.observer.drain()), []string{"EXPIRED a version 1 count 1 trimmed 0"})
		f.invisible("a")
		f.append("a", user("hello"))
		f.clock.Advance(2 * time.Hour)
		f.visible("a")
	})
	t.Run("evicted before its delete time", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
		f.create("a")
		f.create("b")
		f.hold("a", "b")
		f.whenFull("c", 2, func() {
			f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "c"}}, store.ErrFull)
			f.expectError(f.newImport("c", time.Minute), store.ErrFull)
		})
		f.release(time.Minute, "a")
		f.observer.drain()
		f.create("c")
		f.sameChanges("EVICTED a version 1 count 0 trimmed 0", "CREATED c version 1 count 0 trimmed 0")
		f.do(&store.Delete{ConversationID: "b"})
		f.create("a")
		f.clock.Advance(time.Minute)
		f.visible("a") // The id is an ordinary one again, without a delete time.
		f.visible("c")
	})
	t.Run("other ids and tenants are not affected", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.create("b")
		f.do(&store.Create{Tenant: "acme2", Conversation: &parleyv1.Conversation{Id: "a"}})
		f.hold("a")
		f.clock.Advance(time.Hour)
		f.missing("b")
		_, err := f.store.Read(t.Context(), &store.Read{Tenant: "acme2", ConversationID: "a"})
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Read in another tenant = %v, want ErrNotFound", err)
		}
		if err := f.store.Release(t.Context(), &store.Hold{Tenant: "acme2", ConversationIDs: []string{"a"}}); err != nil {
			t.Errorf("Release: %v", err)
		}
		f.visible("a")
	})
	t.Run("cancelled", s.holdCancelled)
	if s.lanes() > 1 {
		t.Run("too many in a bucket", s.holdsOfLanes)
	} else {
		t.Run("too many", s.tooManyHolds)
	}
	t.Run("concurrent", s.holdConcurrently)
	if s.Durable {
		t.Run("restart", s.holdRestart)
	}
}

func (s Subject) releaseAtOnce(t *testing.T) {
	f := s.open(t, nil)
	for _, id := range []string{"a", "b", "c", "d"} {
		f.append(id, user("hello"))
	}
	uid := f.header("c").GetUid()
	f.hold("a", "b", "c", "none")
	f.hold("b")
	f.observer.drain()
	observations := 0
	f.observer.setCallback(func([]store.Change) { observations++ })
	f.release(0, "c", "none", "a", "b", "a", "d")
	changes := f.observer.drain()
	slices.SortFunc(changes, func(a, b store.Change) int { return int(a.ConversationID[0]) - int(b.ConversationID[0]) })
	same(t, "changes", summaries(changes), []string{
		"DELETED a version 1 count 1 trimmed 0" + ephemeralEnded, "DELETED c version 1 count 1 trimmed 0" + ephemeralEnded,
	})
	if c := changes[1]; observations < 1 || observations > s.lanes() || c.UID != uid || c.Tenant != tenant ||
		c.Conversation != nil || !c.Time.Equal(f.clock.Now()) {
		t.Errorf("%d observations, last change = %+v", observations, c)
	}
	f.invisible("a")
	f.invisible("c")
	f.visible("b")
	f.release(0, "b")
	f.invisible("b")
	f.visible("d")
	if stats := f.stats(); stats.Conversations != 1 || stats.Messages != 1 || stats.Expired+stats.Evicted != 0 {
		t.Errorf("Stats() = %+v", stats)
	}
}

// releaseTurn releases conversations that have a running turn.
func (s Subject) releaseTurn(t *testing.T) {
	f := s.open(t, nil)
	f.hold("a", "b")
	for _, id := range []string{"a", "b"} {
		f.beginTurn(id, "turn")
		if err := f.save(id, "turn", nil, "so far"); err != nil {
			t.Fatal(err)
		}
	}
	f.release(0, "a")
	f.invisible("a")
	f.release(time.Minute, "b")
	f.clock.Advance(time.Minute)
	f.invisible("b")
	f.beginTurn("a", "turn") // This is a turn of a new conversation.
	if !s.Durable {
		return
	}
	f.reopen(nil)
	f.abandoned([]store.Progress{{ConversationID: "a", TurnID: "turn"}})
	f.sweep()
	f.beginTurn("b", "turn")
	f.reopen(nil)
	f.abandoned([]store.Progress{{ConversationID: "a", TurnID: "turn"}, {ConversationID: "b", TurnID: "turn"}})
}

// beginAfterDeleteTime starts a turn on an id whose ephemeral conversation has reached its delete
// time and has not been swept. The turn of that conversation is still running.
func (s Subject) beginAfterDeleteTime(t *testing.T) {
	for name, change := range map[string]func(a *store.Append){
		"plain":        func(*store.Append) {},
		"if_version 0": func(a *store.Append) { a.IfVersion = new(int32) },
		"the request of the old turn": func(a *store.Append) {
			a.Request = request("r", "question")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := s.open(t, nil)
			f.hold("a")
			begin := &store.Append{
				ConversationID: "a", Messages: []*parleyv1.Message{user("question")}, Begin: &parleyv1.Turn{Id: "old"},
				Request: request("r", "question"),
			}
			old := f.do(begin).Conversation.GetUid()
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute)
			again := func() *store.Append {
				a := &store.Append{
					ConversationID: "a", Messages: []*parleyv1.Message{user("new")}, Begin: &parleyv1.Turn{Id: "new"},
				}
				change(a)
				return a
			}
			other, version, exists := again(), again(), again()
			other.UID, version.IfVersion, exists.MustExist = old, new(int32(1)), true
			f.expectError(other, store.ErrNotFound)
			f.expectError(version, &store.VersionError{Required: 1})
			f.expectError(exists, store.ErrNotFound)
			f.observer.drain()
			result := f.do(again())
			if !result.Created || result.Replayed || result.Conversation.GetUid() == old ||
				result.Conversation.GetActiveTurnId() != "new" {
				t.Errorf("Append = %+v, want a turn in a new conversation", result)
			}
			same(t, "changes", summaries(f.observer.drain())[:2], []string{
				"DELETED a version 1 count 1 trimmed 0" + ephemeralEnded, "CREATED a version 1 count 1 trimmed 0",
			})
			f.expectError(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "old"}}, store.ErrTurnEnded)
			if err := f.save("a", "old", nil, "late"); !errorIs(err, store.ErrTurnEnded) {
				t.Errorf("SaveProgress of the old turn: %v, want ErrTurnEnded", err)
			}
			f.clock.Advance(2 * time.Hour)
			f.endTurn("a", "new")
			f.visible("a")
		})
	}
}

func (s Subject) holdCancelled(t *testing.T) {
	f := s.open(t, nil)
	f.create("held")
	f.create("not held")
	f.hold("held")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func(context.Context, *store.Hold) error{
		"Hold": f.store.Hold, "Release": f.store.Release,
	} {
		if err := call(ctx, &store.Hold{Tenant: tenant, ConversationIDs: []string{"held", "not held"}}); !errors.Is(err,
			context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
	f.clock.Advance(time.Hour)
	f.visible("held")
	f.missing("not held")
	f.release(0, "held")
	f.invisible("held")
}

func (s Subject) tooManyHolds(t *testing.T) {
	f := s.open(t, nil)
	f.create("a")
	all := make([]string, store.MaxHolds)
	for i := range all {
		all[i] = fmt.Sprint("held ", i)
	}
	for _, id := range all[:3] {
		f.create(id)
	}
	f.hold(all...)
	expectTooMany := func(ids ...string) {
		t.Helper()
		err := f.store.Hold(t.Context(), &store.Hold{Tenant: tenant, ConversationIDs: ids})
		if !errors.Is(err, store.ErrTooManyHolds) {
			t.Errorf("Hold: %v, want ErrTooManyHolds", err)
		}
	}
	expectTooMany(all[0], "a")
	f.hold(all[0])
	if err := f.store.Hold(t.Context(), &store.Hold{Tenant: "acme2", ConversationIDs: []string{"a"}}); err != nil {
		t.Errorf("Hold of another tenant: %v", err)
	}
	f.release(time.Minute, all[:3]...) // The first id still has a second hold.
	expectTooMany("a")
	f.clock.Advance(time.Minute)
	expectTooMany(all[1], all[2], "a") // Nothing has been swept yet.
	expectTooMany("a", "b", "c")
	f.hold(all[1], "b")
	expectTooMany("a")
	f.clock.Advance(time.Hour)
	f.invisible("a")
	f.release(time.Hour, all[3:5]...) // These ids have no conversation, so they are ordinary ids at once.
	f.hold("a", "c")
	f.create(all[1])
	f.release(time.Hour, all[1])
	expectTooMany("d")
	f.do(&store.Delete{ConversationID: all[1]})
	f.hold("d")
	expectTooMany("e")
}

// holdConcurrently holds shared conversations and conversations of their own from many goroutines.
func (s Subject) holdConcurrently(t *testing.T) {
	f := s.open(t, nil)
	f.clock.tick = time.Millisecond
	ctx := t.Context()
	shared := &store.Hold{Tenant: tenant, ConversationIDs: []string{"x", "y"}}
	f.create("x")
	f.create("y")
	f.hold("y")
	f.clock.Advance(time.Hour) // x expires.
	done := make(chan struct{})
	var group, readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				if _, err := f.store.List(ctx, &store.List{Tenant: tenant, PageSize: 9}); err != nil {
					t.Errorf("List: %v", err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for w := range 16 {
		group.Go(func() {
			id := fmt.Sprint("own ", w)
			own := &store.Hold{Tenant: tenant, ConversationIDs: []string{id}}
			expect := func(want error) {
				if _, err := f.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id}); !errors.Is(err, want) {
					t.Errorf("Read: %v, want %v", err, want)
				}
			}
			for range 10 {
				err := errors.Join(f.store.Hold(ctx, own), f.store.Hold(ctx, shared))
				_, created := f.store.Create(ctx, &store.Create{
					Tenant: tenant, Conversation: &parleyv1.Conversation{Id: id, Retention: withTTL(time.Hour)},
				})
				f.clock.Advance(time.Hour)
				expect(nil)
				released := errors.Join(f.store.Release(ctx, own), f.store.Release(ctx, shared))
				expect(store.ErrNotFound)
				if err := errors.Join(err, created, released); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	close(done)
	readers.Wait()
	same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"y"}})
	f.release(0, "y")
	f.invisible("y")
	f.sweep()
	f.consistent()
}

// holdRestart closes the store, as at the end of a process, and opens it again.
func (s Subject) holdRestart(t *testing.T) {
	f := s.open(t, nil)
	for _, id := range []string{"latest", "no delay", "waits", "ended", "released", "ordinary"} {
		f.create(id)
	}
	f.holdFor(time.Hour, "latest", "no delay", "waits", "ended", "released", "created later")
	f.holdFor(3*time.Hour, "latest")
	f.holdFor(0, "no delay")
	f.release(30*time.Hour, "waits")
	f.release(time.Hour, "ended")
	f.release(0, "released")
	f.release(9*time.Hour, "latest") // It still has another hold.
	f.clock.Advance(20 * time.Hour)
	f.observer.drain()
	f.reopen(nil)
	f.invisible("no delay")
	f.invisible("ended")
	f.invisible("released")
	f.invisible("ordinary")
	f.release(0, "latest", "waits") // They have no hold, so this call has no effect.
	f.visible("latest")
	f.visible("waits")
	f.create("created later") // It is an ordinary conversation.
	f.clock.Advance(time.Hour - time.Millisecond)
	f.visible("created later")
	f.reopen(nil) // Reopening must not restart any delay.
	f.clock.Advance(2*time.Hour - 1)
	f.visible("latest")
	f.clock.Advance(1)
	f.invisible("latest")
	f.hold("waits")
	f.clock.Advance(20 * time.Hour)
	f.visible("waits")
	f.sweep()
	changes := summaries(f.observer.drain())
	slices.Sort(changes)
	same(t, "changes", slices.DeleteFunc(changes, func(c string) bool { return c[:1] == "U" || c[:1] == "C" }), []string{
		"DELETED ended version 1 count 0 trimmed 0" + ephemeralEnded,
		"DELETED latest version 3 count 0 trimmed 0" + ephemeralEnded,
		"DELETED no delay version 1 count 0 trimmed 0" + ephemeralEnded,
		"EXPIRED created later version 2 count 0 trimmed 0", "EXPIRED ordinary version 1 count 0 trimmed 0",
	})
}
