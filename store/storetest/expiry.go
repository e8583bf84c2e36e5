package storetest

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// sweepSlack is the maximum time from expire_time until Sweep removes a conversation.
const sweepSlack = 2 * time.Minute

func (s Subject) law05Expiry(t *testing.T) {
	hour := func(o *store.Options) { o.TTL = time.Hour }
	t.Run("at expire_time", func(t *testing.T) {
		f := s.open(t, hour)
		f.append("a", user("hello"))
		f.clock.Advance(time.Hour - 1)
		expires := f.header("a").GetExpireTime().AsTime()
		f.clock.Advance(1)
		_, err := f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: 1})
		var expired *store.ExpiredError
		if !errors.As(err, &expired) || !expired.At.Equal(expires) || !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Read(a) = %v, want an ExpiredError at %v that is ErrNotFound", err, expires)
		}
		f.expired("a")
	})
	t.Run("reads do not postpone the expiry", func(t *testing.T) {
		f := s.open(t, hour)
		expires := f.create("a").Conversation.GetExpireTime()
		f.clock.Advance(time.Hour - 1)
		f.list(store.List{PageSize: 1})
		f.list(store.List{PageSize: 1, Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC})
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, OrGet: true})
		same(t, "expire_time", f.header("a").GetExpireTime(), expires)
		f.clock.Advance(1)
		f.expired("a")
	})
	t.Run("an append postpones the expiry, an update does not", func(t *testing.T) {
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
		f.expired("a")
	})
	t.Run("not while a turn runs", func(t *testing.T) {
		f := s.open(t, hour)
		f.beginTurn("a", "turn")
		f.clock.Advance(72 * time.Hour)
		f.sweep()
		f.header("a")
		if got := f.pages(store.List{PageSize: 1}); len(got[0]) != 1 {
			t.Error("List does not contain a conversation with a running turn")
		}
		f.do(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_FAILED}})
		f.clock.Advance(time.Hour - 1)
		f.header("a") // The ttl counts from the end of the turn.
		f.clock.Advance(1)
		f.expired("a")
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
		f.expired("over")
		f.clock.Advance(10 * time.Minute)
		f.expired("shorter")
		f.clock.Advance(79 * time.Minute)
		f.sweep()
		f.header("longer")
		f.clock.Advance(time.Minute)
		f.expired("longer")
	})
	t.Run("no early expiry after the clock was set back", func(t *testing.T) {
		f := s.open(t, hour)
		f.append("a", user("before"))
		old := f.messages("a")[0]
		expires := f.header("a").GetExpireTime().AsTime()
		f.clock.Advance(-30 * time.Minute)
		f.header("a")
		f.append("a", user("after"))
		c := f.header("a")
		if c.GetExpireTime().AsTime().Before(expires) {
			t.Errorf("expire_time changed from %v to the earlier %v", expires, c.GetExpireTime().AsTime())
		}
		if m := f.messages("a")[1]; m.GetCreateTime().AsTime().Before(old.GetCreateTime().AsTime()) {
			t.Error("the second message has an earlier create_time than the first")
		}
		f.clock.Advance(30*time.Minute + time.Hour - 2*time.Millisecond)
		f.sweep()
		f.header("a")
	})
}

// invisible checks that no method finds a conversation that has expired or ended but has not been
// swept.
func (f *fixture) invisible(id string) {
	f.t.Helper()
	f.missing(id)
	if err := f.save(id, "turn", nil, "late"); !errorIs(err, store.ErrTurnEnded) {
		f.t.Errorf("SaveProgress(%s) = %v, want ErrTurnEnded", id, err)
	}
	for _, write := range []any{
		&store.Append{ConversationID: id, Messages: []*parleyv1.Message{user("late")}, MustExist: true},
		&store.Append{ConversationID: id, End: &parleyv1.Turn{Id: "turn"}},
		&store.Update{ConversationID: id, KeepThrough: new(int32)},
		&store.Delete{ConversationID: id},
	} {
		f.expectError(write, store.ErrNotFound)
	}
	for _, l := range []store.List{
		{PageSize: 10}, {PageSize: 10, OldestFirst: true}, {PageSize: 10, Order: byUpdateTime},
	} {
		for _, page := range f.pages(l) {
			for _, listed := range page {
				if listed == id {
					f.t.Errorf("List contains the expired %s", id)
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
			f.t.Errorf("Purge, dry run, contains the expired %s", id)
		}
	}
}

// expired checks that a conversation has expired, has not been swept, and can be created again.
func (f *fixture) expired(id string) {
	f.t.Helper()
	f.invisible(id)
	expired := f.stats().Expired
	f.observer.drain()
	result := f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{user("recreated")}, IfVersion: new(int32),
	})
	if c := result.Conversation; !result.Created || c.GetVersion() != 1 || result.Appended[0].GetSequence() != 1 {
		f.t.Errorf("Append to the expired %s = %v, want a new conversation", id, c)
	}
	changes := f.observer.drain()
	if len(changes) != 3 || changes[0].Kind != parleyv1.ChangeKind_CHANGE_KIND_EXPIRED ||
		changes[0].ConversationID != id || changes[0].ExpireTime.IsZero() || changes[0].ExpireTime.After(f.clock.Now()) ||
		changes[1].Kind != parleyv1.ChangeKind_CHANGE_KIND_CREATED || changes[0].UID == changes[1].UID {
		f.t.Errorf("changes of recreating %s = %v", id, summaries(changes))
	}
	if n := f.stats().Expired - expired; n != 1 {
		f.t.Errorf("Stats().Expired grew by %d when %s was recreated, want 1", n, id)
	}
}

// sweep tests Sweep.
func (s Subject) sweep(t *testing.T) {
	t.Run("removes only expired conversations", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("expired", user("one"), user("two"))
		f.create("prolonged")
		f.create("running")
		f.beginTurn("running", "turn")
		f.clock.Advance(40 * time.Minute)
		f.append("prolonged", user("hello"))
		f.clock.Advance(20*time.Minute + sweepSlack)
		before := f.all()
		f.observer.drain()
		f.sweep()
		same(t, "remaining conversations", f.all(), before)
		same(t, "changes", summaries(f.observer.drain()), []string{"EXPIRED expired version 1 count 2 trimmed 0"})
		if stats := f.stats(); stats.Conversations != 2 || stats.Messages != 2 || stats.Expired != 1 || stats.Evicted != 0 {
			t.Errorf("Stats() = %+v", stats)
		}
		f.endTurn("running", "turn")
		f.clock.Advance(time.Hour + sweepSlack)
		f.sweep()
		if stats := f.stats(); stats.Conversations != 0 || stats.Expired != 3 {
			t.Errorf("Stats() after all have expired = %+v", stats)
		}
		f.sweep()
		if n := len(f.observer.drain()); n != 3 {
			t.Errorf("%d changes, want 3: the end of the turn and two expiries", n)
		}
	})
	t.Run("removes what a new ttl has made expire", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.do(&store.Update{
			ConversationID: "a", Fields: []string{"retention.ttl"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)}},
		})
		f.clock.Advance(sweepSlack)
		f.sweep()
		if n := f.stats().Conversations; n != 0 {
			t.Errorf("Stats().Conversations = %d, want 0", n)
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
				t.Fatalf("Sweep(3) left %d of %d, more = %t", now, left, more)
			}
			left = now
		}
		if left != 0 {
			t.Errorf("%d conversations are left after the last Sweep, want 0", left)
		}
	})
	t.Run("over capacity", func(t *testing.T) {
		if !s.Durable {
			t.Skip("this store keeps no data after Close, so the limit cannot be lowered")
		}
		f := s.open(t, nil)
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			f.create(id)
		}
		f.beginTurn("b", "turn")
		f.reopen(func(o *store.Options) { o.MaxConversations = 2 })
		f.observer.drain()
		f.sweep()
		same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"e", "b"}})
		f.sameChanges("EVICTED a version 1 count 0 trimmed 0", "EVICTED c version 1 count 0 trimmed 0",
			"EVICTED d version 1 count 0 trimmed 0")
		f.beginTurn("e", "turn")
		f.reopen(func(o *store.Options) { o.MaxConversations = 1 })
		f.sweep() // The loop ends although the tenant stays over its limit.
		f.header("b")
		f.header("e")
	})
}
