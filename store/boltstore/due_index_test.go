package boltstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestCapacityWork counts the allocations of a create at capacity in the minute in which many other
// conversations expire. The count must not depend on their number.
func TestCapacityWork(t *testing.T) {
	const others = 2000
	c := newClock()
	c.advance(c.Now().Truncate(time.Minute).Add(time.Minute + 50*time.Second).Sub(c.Now()))
	s := open(t, newPath(t), store.Options{Now: c.Now, TTL: time.Hour, MaxConversations: others})
	made := 0
	create := func() {
		made++
		if _, err := s.Create(t.Context(), &store.Create{
			Tenant: "acme", Conversation: &parleyv1.Conversation{Id: fmt.Sprint(made)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range others {
		create()
	}
	const runs = 100
	c.advance(30 * time.Minute)
	before := testing.AllocsPerRun(runs, create)
	c.advance(29*time.Minute + 20*time.Second) // 40 s before the others expire
	create()
	if within := testing.AllocsPerRun(runs, create); within > 2*before {
		t.Errorf("a create makes %v allocations in the minute in which %d others expire, %v before it", within, others,
			before)
	}
	wantConsistent(t, s)
}

// TestDueIndexDropped deletes all conversations of a tenant that was at its capacity. Its due index
// must be dropped.
func TestDueIndexDropped(t *testing.T) {
	c := newClock()
	path := newPath(t)
	s := open(t, path, store.Options{Now: c.Now, TTL: time.Hour, MaxConversations: 2})
	appendTo(t, s, "a", "hello")
	appendTo(t, s, "b", "hello")
	appendTo(t, s, "c", "hello")
	if n := len(s.tally.dueIndexes); n != 1 {
		t.Errorf("%d tenants have a due index, want 1", n)
	}
	for _, id := range []string{"b", "c"} {
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.tally.dueIndexes); n != 0 {
		t.Errorf("%d tenants have a due index, want none", n)
	}
}

// TestDueIndexDroppedBelowCapacity drops the due index of a tenant that was at its capacity and is
// far below it now.
func TestDueIndexDroppedBelowCapacity(t *testing.T) {
	c := newClock()
	s := open(t, newPath(t), store.Options{Now: c.Now, TTL: time.Hour, MaxConversations: 4})
	for i := range 5 {
		appendTo(t, s, fmt.Sprint(i), "hello")
	}
	if n := len(s.tally.dueIndexes); n != 1 {
		t.Errorf("%d tenants have a due index, want 1", n)
	}
	c.advance(2 * time.Hour)
	appendTo(t, s, "new", "hello")
	sweep(t, s)
	if n := len(s.tally.dueIndexes); n != 0 {
		t.Errorf("%d tenants have a due index, want none", n)
	}
}

// TestDueIndexAfterFailure fails a transaction that read the due index of one tenant. The index of
// another tenant must stay.
func TestDueIndexAfterFailure(t *testing.T) {
	c := newClock()
	s := open(t, newPath(t), store.Options{Now: c.Now, TTL: time.Hour, MaxConversations: 2})
	for _, tenant := range []string{"acme", "other"} {
		for i := range 3 {
			if _, err := s.Create(t.Context(), &store.Create{
				Tenant: tenant, Conversation: &parleyv1.Conversation{Id: fmt.Sprint(i)},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	acme, other := s.tally.dueIndexes["acme"], s.tally.dueIndexes["other"]
	err := s.do(t.Context(), "acme", 0, func(x *txn) error {
		x.readDueIndex("acme", c.Now())
		x.put(x.turns, []byte("key"), nil)
		panic("invalid page type")
	})
	if !errors.Is(err, store.ErrCorrupt) {
		t.Fatalf("do = %.99v, want ErrCorrupt", err)
	}
	appendTo(t, s, "2", "hello")
	if acme == nil || other == nil || s.tally.dueIndexes["acme"] == acme || s.tally.dueIndexes["other"] != other {
		t.Error("after the failure, want the due index of acme dropped and that of other unchanged")
	}
}
