package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func (s Subject) law11Capacity(t *testing.T) {
	three := func(o *store.Options) { o.MaxConversations = 3 }
	fill := func(f *fixture) {
		for _, id := range []string{"a", "b", "c"} {
			f.create(id)
		}
		f.append("a", user("hello")) // The create time decides which conversation is evicted, not the update time.
		f.observer.drain()
	}
	for name, newOne := range map[string]any{
		"Create": &store.Create{Conversation: &parleyv1.Conversation{Id: "new"}},
		"Append": &store.Append{ConversationID: "new", Begin: &parleyv1.Turn{Id: "turn"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := s.open(t, three)
			fill(f)
			f.clock.Advance(time.Millisecond)
			// An invalid write evicts nothing.
			f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "new", Title: "no UTF-8: \xff"}}, nil)
			f.do(newOne)
			f.sameChanges("EVICTED a version 2 count 1 trimmed 0", "CREATED new version 1 count 0 trimmed 0")
			f.missing("a")
			same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"new", "c", "b"}})
			if stats := f.stats(); stats.Evicted != 1 || stats.Expired != 0 || stats.Conversations != 3 {
				t.Errorf("Stats() = %+v", stats)
			}
		})
		t.Run(name+" when all have a turn", func(t *testing.T) {
			f := s.open(t, three)
			fill(f)
			for _, id := range []string{"a", "b", "c"} {
				f.beginTurn(id, "turn")
			}
			f.clock.Advance(24 * time.Hour)
			f.whenFull("new", 3, func() { f.expectError(newOne, store.ErrFull) })
			f.append("a", user("existing conversation"))
			f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, OrGet: true})
			f.endTurn("b", "turn")
			f.do(newOne)
			f.settle()
			f.missing("b")
		})
	}
	t.Run("conversations with a running turn are skipped", func(t *testing.T) {
		f := s.open(t, three)
		fill(f)
		f.beginTurn("a", "turn")
		f.create("d")
		f.settle()
		same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"d", "c", "a"}})
	})
	t.Run("expired conversations are removed first", func(t *testing.T) {
		f := s.open(t, three)
		f.create("old")
		f.create("expired")
		f.clock.Advance(30 * time.Minute)
		f.append("old", user("hello"))
		f.create("c")
		f.clock.Advance(30 * time.Minute)
		f.observer.drain()
		f.create("d")
		f.sameChanges("EXPIRED expired version 1 count 0 trimmed 0", "CREATED d version 1 count 0 trimmed 0")
		same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"d", "c", "old"}})
		if stats := f.stats(); stats.Evicted != 0 || stats.Expired != 1 {
			t.Errorf("Stats() = %+v", stats)
		}
	})
	t.Run("expired conversations are removed first among many that expire later", func(t *testing.T) {
		const many = 10_050
		f := s.open(t, func(o *store.Options) { o.MaxConversations = many + 1 })
		now := f.clock.Now()
		f.clock.Advance(now.Truncate(time.Minute).Add(time.Minute).Sub(now)) // All expiries are then in one minute.
		create := func(id string, ttl time.Duration) {
			c := &parleyv1.Conversation{Id: id, Retention: &parleyv1.Retention{Ttl: durationpb.New(ttl)}}
			if _, err := f.store.Create(t.Context(), &store.Create{Tenant: tenant, Conversation: c}); err != nil {
				t.Errorf("Create(%s): %v", id, err)
			}
		}
		var group sync.WaitGroup
		const callers = 64
		for caller := range callers {
			group.Go(func() {
				for i := caller; i < many; i += callers {
					create(fmt.Sprint("c", i), time.Hour+50*time.Second)
				}
			})
		}
		group.Wait()
		f.clock.Advance(time.Second)
		create("expired", time.Hour)
		f.clock.Advance(time.Hour + time.Second)
		f.observer.drain()
		create("new", time.Hour)
		f.sameChanges("EXPIRED expired version 1 count 0 trimmed 0", "CREATED new version 1 count 0 trimmed 0")
	})
	t.Run("the new conversation stays if the clock was set back", func(t *testing.T) {
		if s.lanes() > 1 {
			t.Skip("with several buckets a tenant, the sweep evicts, and it knows no new conversation")
		}
		f := s.open(t, three)
		fill(f)
		f.clock.Advance(-time.Minute)
		f.create("new")
		f.header("new")
		f.missing("a")
	})
	t.Run("created with the id of an expired conversation", func(t *testing.T) {
		f := s.open(t, three)
		f.create("a")
		f.clock.Advance(30 * time.Minute)
		f.create("b")
		f.create("c")
		f.clock.Advance(30 * time.Minute)
		f.create("a")
		same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"a", "c", "b"}})
		if stats := f.stats(); stats.Evicted != 0 || stats.Expired != 1 || stats.Conversations != 3 {
			t.Errorf("Stats() = %+v", stats)
		}
	})
	t.Run("never more under concurrent writes", func(t *testing.T) {
		f := s.open(t, three)
		f.clock.tick = time.Microsecond
		var group sync.WaitGroup
		for i := range 64 {
			group.Go(func() {
				write := &store.Append{
					Tenant: tenant, ConversationID: fmt.Sprint("c", i), Messages: []*parleyv1.Message{user("hello")},
				}
				if _, err := f.store.Append(t.Context(), write); err != nil {
					t.Errorf("Append: %v", err)
				}
				most := s.lanes() * s.share(3)
				if page, err := f.store.List(t.Context(), &store.List{Tenant: tenant, PageSize: 10}); err != nil ||
					page.Total > int64(most) || len(page.Entries) > most {
					t.Errorf("List = %+v, %v, want at most %d conversations", page, err, most)
				}
			})
		}
		group.Wait()
		f.settle()
		f.consistent()
		if stats := f.stats(); stats.Evicted != 61 {
			t.Errorf("Stats().Evicted = %d, want 61", stats.Evicted)
		}
	})
}

// law12Isolation calls every method for one tenant and checks that another tenant is unchanged.
func (s Subject) law12Isolation(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 4 })
	for _, id := range []string{"a", "b", "c"} {
		f.append(id, user("hello"), assistant("hi", "list"))
	}
	f.beginTurn("c", "turn")
	before := f.all()
	f.observer.drain()

	const other = "acme2"
	for name, write := range map[string]any{
		"append": &store.Append{
			Tenant: other, ConversationID: "a", Messages: []*parleyv1.Message{user("late")}, MustExist: true,
		},
		"end":    &store.Append{Tenant: other, ConversationID: "c", End: &parleyv1.Turn{Id: "turn"}},
		"update": &store.Update{Tenant: other, ConversationID: "a", KeepThrough: new(int32)},
		"delete": &store.Delete{Tenant: other, ConversationID: "a"},
	} {
		if _, err := f.try(write); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s in another tenant = %v, want ErrNotFound", name, err)
		}
	}
	if _, err := f.store.Read(t.Context(), &store.Read{Tenant: other, ConversationID: "a"}); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("Read in another tenant = %v, want ErrNotFound", err)
	}
	p := &store.Progress{Tenant: other, ConversationID: "c", TurnID: "turn"}
	if err := f.store.SaveProgress(t.Context(), p); !errors.Is(err, store.ErrTurnEnded) {
		t.Errorf("SaveProgress in another tenant = %v, want ErrTurnEnded", err)
	}
	if page := f.list(store.List{Tenant: other, PageSize: 9}); len(page.Entries) != 0 || page.Total != 0 {
		t.Errorf("List of the other tenant = %v, total %d, want none", ids(page), page.Total)
	}

	same(t, "tenants", f.tenantNames(1), []string{tenant})
	same(t, "counts of the other tenant", f.tenantStats(other), store.Stats{})

	// The other tenant uses the same ids and requests up to its own capacity, and then deletes
	// them.
	r := request("r", "hello")
	f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r})
	counts := f.tenantStats(tenant)
	before["a"] = f.read("a")
	result := f.do(&store.Append{
		Tenant: other, ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}, Request: r,
	})
	if result.Replayed {
		t.Error("Append replayed a request of another tenant")
	}
	for i := range 8 {
		f.clock.Advance(time.Millisecond)
		f.do(&store.Create{Tenant: other, Conversation: &parleyv1.Conversation{Id: fmt.Sprint("c", i)}})
	}
	f.do(&store.Create{Tenant: other, Conversation: &parleyv1.Conversation{Id: "c"}})
	f.settle()
	if page := f.list(store.List{Tenant: other, PageSize: 9}); page.Total != 4 {
		t.Errorf("total of the other tenant = %d, want 4", page.Total)
	}
	f.do(&store.Delete{Tenant: other, ConversationID: "c"})
	f.clock.Advance(time.Second)
	purged, err := f.store.Purge(t.Context(), &store.Purge{Tenant: other, InactiveFor: time.Second})
	if err != nil || purged.Count != 3 {
		t.Errorf("Purge = %+v, %v, want 3 conversations", purged, err)
	}
	same(t, "the first tenant's conversations", f.all(), before)
	same(t, "the first tenant's counts", f.tenantStats(tenant), counts)
	same(t, "tenants after the other one has deleted everything", f.tenantNames(1), []string{tenant})
	if page := f.list(store.List{PageSize: 9}); page.Total != 3 {
		t.Errorf("total of the first tenant = %d, want 3", page.Total)
	}
	for _, c := range f.observer.drain() {
		if c.Tenant != other && c.Tenant != tenant || c.Tenant == tenant && c.ConversationID != "a" {
			t.Errorf("unexpected change %s of %s in tenant %s", kind(c.Kind), c.ConversationID, c.Tenant)
		}
	}
}
