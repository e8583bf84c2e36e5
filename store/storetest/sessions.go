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

// sessions is the test of Hold and Release, beside what the law says.
func (s Subject) sessions(t *testing.T) {
	t.Run("at once", s.releaseAtOnce)
	t.Run("a turn runs", s.releaseTurn)
	t.Run("a turn begins before the sweep", s.beginAfterSession)
	t.Run("what has expired does not come back", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("hello"))
		f.clock.Advance(time.Hour)
		f.seen.take()
		f.hold("a")
		same(t, "changes", brief(f.seen.take()), []string{"EXPIRED a version 1 count 1 trimmed 0"})
		f.nowhere("a")
		f.append("a", user("hello"))
		f.clock.Advance(2 * time.Hour)
		f.lives("a")
	})
	t.Run("evicted in its time", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
		f.create("a")
		f.create("b")
		f.hold("a", "b")
		f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "c"}}, store.ErrFull)
		f.refuse(f.importing("c", time.Minute), store.ErrFull)
		f.release(time.Minute, "a")
		f.seen.take()
		f.create("c")
		same(t, "changes", brief(f.seen.take()), []string{"EVICTED a version 1 count 0 trimmed 0", "CREATED c version 1 count 0 trimmed 0"})
		f.do(&store.Delete{ConversationID: "b"})
		f.create("a")
		f.clock.Advance(time.Minute)
		f.lives("a") // Its id has lost its delete time.
		f.lives("c")
	})
	t.Run("of nobody else", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.create("b")
		f.do(&store.Create{Tenant: "acme2", Conversation: &parleyv1.Conversation{Id: "a"}})
		f.hold("a")
		f.clock.Advance(time.Hour)
		f.missing("b")
		_, err := f.store.Read(t.Context(), &store.Read{Tenant: "acme2", ConversationID: "a"})
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Read of another tenant's: %v, want ErrNotFound", err)
		}
		if err := f.store.Release(t.Context(), &store.Hold{Tenant: "acme2", ConversationIDs: []string{"a"}}); err != nil {
			t.Errorf("Release: %v", err)
		}
		f.lives("a")
	})
	t.Run("cancelled", s.holdCancelled)
	t.Run("too many", s.tooManyHolds)
	t.Run("many at once", s.holdConcurrently)
	if s.Durable {
		t.Run("when the process ends", s.holdRestart)
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
	f.seen.take()
	steps := 0
	f.seen.and(func([]store.Change) { steps++ })
	f.release(0, "c", "none", "a", "b", "a", "d")
	told := f.seen.take()
	slices.SortFunc(told, func(a, b store.Change) int { return int(a.ConversationID[0]) - int(b.ConversationID[0]) })
	same(t, "changes", brief(told), []string{"DELETED a version 1 count 1 trimmed 0" + sessionEnded, "DELETED c version 1 count 1 trimmed 0" + sessionEnded})
	if c := told[1]; steps != 1 || c.UID != uid || c.Tenant != tenant || c.Conversation != nil || !c.Time.Equal(f.clock.Now()) {
		t.Errorf("%d steps, the last change is %+v", steps, c)
	}
	f.nowhere("a")
	f.nowhere("c")
	f.lives("b")
	f.release(0, "b")
	f.nowhere("b")
	f.lives("d")
	if stats := f.stats(); stats.Conversations != 1 || stats.Messages != 1 || stats.Expired+stats.Evicted != 0 {
		t.Errorf("stats %+v", stats)
	}
}

// releaseTurn ends session memory on which a turn runs.
func (s Subject) releaseTurn(t *testing.T) {
	f := s.open(t, nil)
	f.hold("a", "b")
	for _, id := range []string{"a", "b"} {
		f.begin(id, "turn")
		if err := f.save(id, "turn", nil, "so far"); err != nil {
			t.Fatal(err)
		}
	}
	f.release(0, "a")
	f.nowhere("a")
	f.release(time.Minute, "b")
	f.clock.Advance(time.Minute)
	f.nowhere("b")
	f.begin("a", "turn") // Of a new conversation.
	if !s.Durable {
		return
	}
	f.reopen(nil)
	f.abandoned([]store.Progress{{ConversationID: "a", TurnID: "turn"}})
	f.sweep()
	f.begin("b", "turn")
	f.reopen(nil)
	f.abandoned([]store.Progress{{ConversationID: "a", TurnID: "turn"}, {ConversationID: "b", TurnID: "turn"}})
}

// beginAfterSession begins a turn on an id whose ephemeral conversation has ended and was not
// swept, while the turn of that conversation still runs.
func (s Subject) beginAfterSession(t *testing.T) {
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
				a := &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("new")}, Begin: &parleyv1.Turn{Id: "new"}}
				change(a)
				return a
			}
			other, version, exists := again(), again(), again()
			other.UID, version.IfVersion, exists.MustExist = old, new(int32(1)), true
			f.refuse(other, store.ErrNotFound)
			f.refuse(version, &store.VersionError{})
			f.refuse(exists, store.ErrNotFound)
			f.seen.take()
			result := f.do(again())
			if !result.Created || result.Replayed || result.Conversation.GetUid() == old || result.Conversation.GetActiveTurnId() != "new" {
				t.Errorf("Append = %+v, want a turn in a new conversation", result)
			}
			same(t, "changes", brief(f.seen.take())[:2], []string{
				"DELETED a version 1 count 1 trimmed 0" + sessionEnded, "CREATED a version 1 count 1 trimmed 0",
			})
			f.refuse(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "old"}}, store.ErrTurnEnded)
			if err := f.save("a", "old", nil, "late"); !is(err, store.ErrTurnEnded) {
				t.Errorf("SaveProgress of the old turn: %v, want ErrTurnEnded", err)
			}
			f.clock.Advance(2 * time.Hour)
			f.end("a", "new")
			f.lives("a")
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
	for name, call := range map[string]func(context.Context, *store.Hold) error{"Hold": f.store.Hold, "Release": f.store.Release} {
		if err := call(ctx, &store.Hold{Tenant: tenant, ConversationIDs: []string{"held", "not held"}}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
	f.clock.Advance(time.Hour)
	f.lives("held")
	f.missing("not held")
	f.release(0, "held")
	f.nowhere("held")
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
	refused := func(ids ...string) {
		t.Helper()
		err := f.store.Hold(t.Context(), &store.Hold{Tenant: tenant, ConversationIDs: ids})
		if !errors.Is(err, store.ErrTooManyHolds) {
			t.Errorf("Hold: %v, want ErrTooManyHolds", err)
		}
	}
	refused(all[0], "a")
	f.hold(all[0])
	if err := f.store.Hold(t.Context(), &store.Hold{Tenant: "acme2", ConversationIDs: []string{"a"}}); err != nil {
		t.Errorf("Hold of another tenant: %v", err)
	}
	f.release(time.Minute, all[:3]...) // But the first is held twice.
	refused("a")
	f.clock.Advance(time.Minute)
	refused(all[1], all[2], "a") // Nothing was swept yet.
	refused("a", "b", "c")
	f.hold(all[1], "b")
	refused("a")
	f.clock.Advance(time.Hour)
	f.nowhere("a")
	f.release(time.Hour, all[3:5]...) // They have no conversation: they are no session memory any more.
	f.hold("a", "c")
	f.create(all[1])
	f.release(time.Hour, all[1])
	refused("d")
	f.do(&store.Delete{ConversationID: all[1]})
	f.hold("d")
	refused("e")
}

// holdConcurrently has many hold the same conversations, and conversations of their own.
func (s Subject) holdConcurrently(t *testing.T) {
	f := s.open(t, nil)
	f.clock.tick = time.Millisecond
	ctx := t.Context()
	shared := &store.Hold{Tenant: tenant, ConversationIDs: []string{"x", "y"}}
	f.create("x")
	f.create("y")
	f.hold("y")
	f.clock.Advance(time.Hour) // x is no more.
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
			is := func(want error) {
				if _, err := f.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id}); !errors.Is(err, want) {
					t.Errorf("Read: %v, want %v", err, want)
				}
			}
			for range 10 {
				err := errors.Join(f.store.Hold(ctx, own), f.store.Hold(ctx, shared))
				_, created := f.store.Create(ctx, &store.Create{Tenant: tenant, Conversation: &parleyv1.Conversation{Id: id, Retention: withTTL(time.Hour)}})
				f.clock.Advance(time.Hour)
				is(nil)
				released := errors.Join(f.store.Release(ctx, own), f.store.Release(ctx, shared))
				is(store.ErrNotFound)
				if err := errors.Join(err, created, released); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	close(done)
	readers.Wait()
	same(t, "what is left", f.pages(store.List{PageSize: 9}), [][]string{{"y"}})
	f.release(0, "y")
	f.nowhere("y")
	f.sweep()
	f.consistent()
}

// holdRestart closes the store, as the end of a process does, and opens it again.
func (s Subject) holdRestart(t *testing.T) {
	f := s.open(t, nil)
	for _, id := range []string{"latest", "at once", "waits", "ended", "released", "ordinary"} {
		f.create(id)
	}
	f.holdFor(time.Hour, "latest", "at once", "waits", "ended", "released", "made later")
	f.holdFor(3*time.Hour, "latest")
	f.holdFor(0, "at once")
	f.release(30*time.Hour, "waits")
	f.release(time.Hour, "ended")
	f.release(0, "released")
	f.release(9*time.Hour, "latest") // It is held by another one.
	f.clock.Advance(20 * time.Hour)
	f.seen.take()
	f.reopen(nil)
	f.nowhere("at once")
	f.nowhere("ended")
	f.nowhere("released")
	f.nowhere("ordinary")
	f.release(0, "latest", "waits") // Nobody holds them.
	f.lives("latest")
	f.lives("waits")
	f.create("made later") // As any other.
	f.clock.Advance(time.Hour - time.Millisecond)
	f.lives("made later")
	f.reopen(nil) // Nothing begins anew.
	f.clock.Advance(2*time.Hour - 1)
	f.lives("latest")
	f.clock.Advance(1)
	f.nowhere("latest")
	f.hold("waits")
	f.clock.Advance(20 * time.Hour)
	f.lives("waits")
	f.sweep()
	told := brief(f.seen.take())
	slices.Sort(told)
	same(t, "changes", slices.DeleteFunc(told, func(c string) bool { return c[:1] == "U" || c[:1] == "C" }), []string{
		"DELETED at once version 1 count 0 trimmed 0" + sessionEnded, "DELETED ended version 1 count 0 trimmed 0" + sessionEnded,
		"DELETED latest version 3 count 0 trimmed 0" + sessionEnded,
		"EXPIRED made later version 2 count 0 trimmed 0", "EXPIRED ordinary version 1 count 0 trimmed 0",
	})
}
