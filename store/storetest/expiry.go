package storetest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// sweepSlack is how much later than expire_time a store may get to remove a conversation.
const sweepSlack = 2 * time.Minute

func (s Subject) law05Expiry(t *testing.T) {
	hour := func(o *store.Options) { o.TTL = time.Hour }
	t.Run("at expire_time", func(t *testing.T) {
		f := s.open(t, hour)
		f.append("a", user("hello"))
		f.clock.Advance(time.Hour - 1)
		f.header("a")
		f.clock.Advance(1)
		f.gone("a")
	})
	t.Run("reads prolong nothing", func(t *testing.T) {
		f := s.open(t, hour)
		expires := f.create("a").Conversation.GetExpireTime()
		f.clock.Advance(time.Hour - 1)
		f.list(store.List{PageSize: 1})
		f.list(store.List{PageSize: 1, Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC})
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, OrGet: true})
		same(t, "expire_time", f.header("a").GetExpireTime(), expires)
		f.clock.Advance(1)
		f.gone("a")
	})
	t.Run("an append prolongs, an update does not", func(t *testing.T) {
		f := s.open(t, hour)
		f.create("a")
		f.clock.Advance(30 * time.Minute)
		f.append("a", user("hello"))
		expires := f.header("a").GetExpireTime()
		f.clock.Advance(20 * time.Minute)
		f.do(&store.Update{ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "new"}})
		same(t, "expire_time", f.header("a").GetExpireTime(), expires)
		f.clock.Advance(40*time.Minute - 1)
		f.header("a")
		f.clock.Advance(1)
		f.gone("a")
	})
	t.Run("not while a turn runs", func(t *testing.T) {
		f := s.open(t, hour)
		f.begin("a", "turn")
		f.clock.Advance(72 * time.Hour)
		f.sweep()
		f.header("a")
		if got := f.pages(store.List{PageSize: 1}); len(got[0]) != 1 {
			t.Error("it is not in the list")
		}
		f.do(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_FAILED}})
		f.clock.Advance(time.Hour - 1)
		f.header("a") // The ttl counts from the turn's end.
		f.clock.Advance(1)
		f.gone("a")
	})
	t.Run("a new ttl counts from the same instant", func(t *testing.T) {
		f := s.open(t, hour)
		for _, id := range []string{"longer", "shorter", "over"} {
			f.create(id)
		}
		ttl := func(id string, d time.Duration) {
			f.do(&store.Update{
				ConversationID: id, Fields: []string{"retention.ttl"},
				Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(d)}},
			})
		}
		f.clock.Advance(30 * time.Minute)
		ttl("longer", 2*time.Hour)
		ttl("shorter", 40*time.Minute)
		ttl("over", time.Minute)
		f.gone("over")
		f.clock.Advance(10 * time.Minute)
		f.gone("shorter")
		f.clock.Advance(79 * time.Minute)
		f.sweep()
		f.header("longer")
		f.clock.Advance(time.Minute)
		f.gone("longer")
	})
	t.Run("a clock that is set back expires nothing early", func(t *testing.T) {
		f := s.open(t, hour)
		f.append("a", user("before"))
		old := f.messages("a")[0]
		expires := f.header("a").GetExpireTime().AsTime()
		f.clock.Advance(-30 * time.Minute)
		f.header("a")
		f.append("a", user("after"))
		c := f.header("a")
		if c.GetExpireTime().AsTime().Before(expires) {
			t.Errorf("expire_time went back from %v to %v", expires, c.GetExpireTime().AsTime())
		}
		if m := f.messages("a")[1]; m.GetCreateTime().AsTime().Before(old.GetCreateTime().AsTime()) {
			t.Error("the second message is older than the first")
		}
		f.clock.Advance(30*time.Minute + time.Hour - 2*time.Millisecond)
		f.sweep()
		f.header("a")
	})
}

// nowhere checks that a conversation which is no more and was not swept is in nobody's way.
func (f *fixture) nowhere(id string) {
	f.t.Helper()
	f.missing(id)
	if err := f.save(id, "turn", nil, "late"); !is(err, store.ErrTurnEnded) {
		f.t.Errorf("SaveProgress of %s: %v, want ErrTurnEnded", id, err)
	}
	for _, write := range []any{
		&store.Append{ConversationID: id, Messages: []*parleyv1.Message{user("late")}, MustExist: true},
		&store.Append{ConversationID: id, End: &parleyv1.Turn{Id: "turn"}},
		&store.Update{ConversationID: id, KeepThrough: new(int32)},
		&store.Delete{ConversationID: id},
	} {
		f.refuse(write, store.ErrNotFound)
	}
	for _, l := range []store.List{
		{PageSize: 10}, {PageSize: 10, OldestFirst: true}, {PageSize: 10, Order: byUpdateTime},
	} {
		for _, page := range f.pages(l) {
			for _, listed := range page {
				if listed == id {
					f.t.Errorf("%s is in the list", id)
				}
			}
		}
	}
	purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant, InactiveFor: 1, DryRun: true})
	if err != nil {
		f.t.Fatalf("Purge: %v", err)
	}
	for _, sample := range purged.SampleIDs {
		if sample == id {
			f.t.Errorf("%s would be purged", id)
		}
	}
}

// gone checks that a conversation which has expired and was not swept can be made anew.
func (f *fixture) gone(id string) {
	f.t.Helper()
	f.nowhere(id)
	expired := f.stats().Expired
	f.seen.take()
	result := f.do(&store.Append{ConversationID: id, Messages: []*parleyv1.Message{user("anew")}, IfVersion: new(int32)})
	if c := result.Conversation; !result.Created || c.GetVersion() != 1 || result.Appended[0].GetSequence() != 1 {
		f.t.Errorf("%s was not made anew: %v", id, c)
	}
	changes := f.seen.take()
	if len(changes) != 3 || changes[0].Kind != parleyv1.ChangeKind_CHANGE_KIND_EXPIRED || changes[0].ConversationID != id ||
		changes[1].Kind != parleyv1.ChangeKind_CHANGE_KIND_CREATED || changes[0].UID == changes[1].UID {
		f.t.Errorf("making %s anew told of %v", id, brief(changes))
	}
	if n := f.stats().Expired - expired; n != 1 {
		f.t.Errorf("%d expired when %s was made anew, want 1", n, id)
	}
}

// sweep is the test of Sweep.
func (s Subject) sweep(t *testing.T) {
	t.Run("removes what has expired, and nothing else", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("expired", user("one"), user("two"))
		f.create("prolonged")
		f.create("running")
		f.begin("running", "turn")
		f.clock.Advance(40 * time.Minute)
		f.append("prolonged", user("hello"))
		f.clock.Advance(20*time.Minute + sweepSlack)
		before := f.all()
		f.seen.take()
		f.sweep()
		same(t, "what is left", f.all(), before)
		same(t, "changes", brief(f.seen.take()), []string{"EXPIRED expired version 1 count 2 trimmed 0"})
		if stats := f.stats(); stats.Conversations != 2 || stats.Messages != 2 || stats.Expired != 1 || stats.Evicted != 0 {
			t.Errorf("stats: %+v", stats)
		}
		f.end("running", "turn")
		f.clock.Advance(time.Hour + sweepSlack)
		f.sweep()
		if stats := f.stats(); stats.Conversations != 0 || stats.Expired != 3 {
			t.Errorf("stats, when all have expired: %+v", stats)
		}
		f.sweep()
		if n := len(f.seen.take()); n != 3 {
			t.Errorf("%d changes, want those of the turn and of two that expired", n)
		}
	})
	t.Run("finds what a new ttl has expired", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.do(&store.Update{
			ConversationID: "a", Fields: []string{"retention.ttl"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)}},
		})
		f.clock.Advance(sweepSlack)
		f.sweep()
		if n := f.stats().Conversations; n != 0 {
			t.Error("it was not swept")
		}
	})
	t.Run("bounded", func(t *testing.T) {
		f := s.open(t, nil)
		for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			f.create(id)
		}
		f.clock.Advance(time.Hour + sweepSlack)
		left := int64(7)
		for more := true; more; {
			var err error
			if more, err = f.store.Sweep(t.Context(), 3); err != nil {
				t.Fatal(err)
			}
			now := f.stats().Conversations
			if left-now > 3 || now == left && more {
				t.Fatalf("a call left %d of %d, more is %v", now, left, more)
			}
			left = now
		}
		if left != 0 {
			t.Errorf("%d are left although there is no more to do", left)
		}
	})
	t.Run("over capacity", func(t *testing.T) {
		if !s.Durable {
			t.Skip("this store keeps nothing when it is closed, so no limit can become lower")
		}
		f := s.open(t, nil)
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			f.create(id)
		}
		f.begin("b", "turn")
		f.reopen(func(o *store.Options) { o.MaxConversations = 2 })
		f.seen.take()
		f.sweep()
		same(t, "what is left", f.pages(store.List{PageSize: 9}), [][]string{{"e", "b"}})
		same(t, "changes", brief(f.seen.take()), []string{
			"EVICTED a version 1 count 0 trimmed 0", "EVICTED c version 1 count 0 trimmed 0", "EVICTED d version 1 count 0 trimmed 0",
		})
		f.begin("e", "turn")
		f.reopen(func(o *store.Options) { o.MaxConversations = 1 })
		f.sweep() // Ends, although the tenant stays over its limit.
		f.header("b")
		f.header("e")
	})
}
