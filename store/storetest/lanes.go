package storetest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// lanes returns the number of buckets of a tenant.
func (s Subject) lanes() int { return max(1, s.Lanes) }

// lane returns the bucket of a conversation among those of its tenant.
func (s Subject) lane(id string) int {
	return int(crc32.Checksum([]byte(id), crc32.MakeTable(crc32.Castagnoli))) % s.lanes()
}

// share returns the maximum number of conversations in one bucket of a tenant with a capacity.
func (s Subject) share(capacity int) int {
	if s.lanes() == 1 {
		return capacity
	}
	return capacity*5/(4*s.lanes()) + 32
}

// sameLane returns n ids that begin with id and are in the bucket of id.
func (s Subject) sameLane(id string, n int) (ids []string) {
	for i := 0; len(ids) < n; i++ {
		if other := fmt.Sprint(id, " ", i); s.lane(other) == s.lane(id) {
			ids = append(ids, other)
		}
	}
	return ids
}

// settle sweeps a store with several buckets a tenant. Before the sweep a tenant may exceed its capacity.
func (f *fixture) settle() {
	f.t.Helper()
	if f.subject.lanes() > 1 {
		f.sweep()
	}
}

// sameChanges compares the summaries of changes of one call, or, with several buckets a tenant, in any order and after
// a sweep.
func (f *fixture) sameChanges(want ...string) {
	f.t.Helper()
	f.settle()
	got := summaries(f.observer.drain())
	if f.subject.lanes() > 1 {
		slices.Sort(got)
		slices.Sort(want)
	}
	same(f.t, "changes", got, want)
}

// whenFull calls check when a conversation with this id exceeds the capacity, because no conversation of the tenant can
// be evicted or because check imports one. With several buckets a tenant, whenFull first fills the bucket of the id up
// to its share of the capacity, with conversations that cannot be evicted. It deletes them afterwards.
func (f *fixture) whenFull(id string, capacity int, check func()) {
	f.t.Helper()
	if f.subject.lanes() == 1 {
		check()
		return
	}
	free := f.subject.share(capacity)
	for other := range f.all() {
		if f.subject.lane(other) == f.subject.lane(id) {
			free--
		}
	}
	added := f.subject.sameLane(id, free)
	for _, other := range added {
		f.do(&store.Create{Conversation: &parleyv1.Conversation{
			Id: other, Retention: &parleyv1.Retention{NoEviction: true},
		}})
	}
	check()
	for _, other := range added {
		f.do(&store.Delete{ConversationID: other})
	}
	f.observer.drain()
}

// modelCapacity returns a capacity for a model. With several buckets a tenant it is unlimited: the model has too few
// conversations to fill the share of a bucket, and law11Lanes tests the capacity.
func (s Subject) modelCapacity(capacity int) int {
	if s.lanes() > 1 {
		return 0
	}
	return capacity
}

// law11Lanes tests the capacity of a tenant that has several buckets.
func (s Subject) law11Lanes(t *testing.T) {
	const capacity = 40
	share := s.share(capacity)
	t.Run("a bucket has at most its share, and loses its oldest", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxConversations = capacity })
		ids := s.sameLane("c", 2*share)
		elsewhere := "older"
		for s.lane(elsewhere) == s.lane("c") {
			elsewhere += "!"
		}
		f.create(elsewhere)
		for i, id := range ids {
			f.create(id)
			if n := f.tenantStats(tenant).Conversations; n > int64(share)+1 {
				t.Fatalf("%d conversations after %d were created in one bucket, want at most %d and 1", n, i+1, share)
			}
		}
		f.header(elsewhere) // It is the oldest of the tenant, in another bucket.
		left := slices.Concat(f.pages(store.List{PageSize: 50, OldestFirst: true})...)[1:]
		same(t, "conversations of the bucket", left, ids[len(ids)-len(left):])
		f.sweep()
		same(t, "conversations after the sweep", slices.Concat(f.pages(store.List{PageSize: 50, OldestFirst: true})...),
			ids[len(ids)-capacity:])
	})
	t.Run("without others to evict", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxConversations = capacity })
		ids := s.sameLane("c", share)
		for _, id := range ids {
			f.createWith(id, &parleyv1.Retention{NoEviction: true})
		}
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "c"}}, store.ErrFull)
		f.expectError(f.newImport("c", time.Minute), store.ErrFull)
		f.setRetention(ids[3], noEviction, nil)
		f.create("c")
		f.missing(ids[3])
	})
	t.Run("concurrent writes", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxConversations = capacity })
		f.clock.tick = time.Microsecond
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				for j := range 2 * share {
					c := &parleyv1.Conversation{Id: fmt.Sprint("c", i, " ", j)}
					if _, err := f.store.Create(t.Context(), &store.Create{Tenant: tenant, Conversation: c}); err != nil {
						t.Errorf("Create: %v", err)
					}
					stats, err := f.store.TenantStats(t.Context(), tenant)
					if err != nil || stats.Conversations > int64(share*s.lanes()) {
						t.Errorf("%d conversations, %v, want at most %d", stats.Conversations, err, share*s.lanes())
					}
				}
			})
		}
		group.Wait()
		f.consistent()
		f.sweep()
		f.consistent()
		if stats := f.stats(); stats.Conversations != capacity || stats.Evicted != int64(32*share-capacity) {
			t.Errorf("Stats() after the sweep = %+v, want %d conversations and %d evictions", stats, capacity,
				32*share-capacity)
		}
	})
}

// holdsOfLanes tests the limit of holds of a tenant that has several buckets.
func (s Subject) holdsOfLanes(t *testing.T) {
	f := s.open(t, nil)
	share := store.MaxHolds / s.lanes()
	other := "other"
	for s.lane(other) == s.lane("held") {
		other += "!"
	}
	f.create(other)
	all := s.sameLane("held", share)
	f.hold(all...)
	for _, ids := range [][]string{{"held"}, {other, "held"}, {"held", other}} {
		err := f.store.Hold(t.Context(), &store.Hold{Tenant: tenant, ConversationIDs: ids})
		if !errors.Is(err, store.ErrTooManyHolds) {
			t.Errorf("Hold(%q): %v, want ErrTooManyHolds", ids, err)
		}
	}
	f.clock.Advance(2 * time.Hour)
	f.missing(other) // The calls that failed have not held it.
	f.hold(all[0], other)
	f.release(0, all[0])
	f.release(0, all[0])
	f.hold("held", other)
}
