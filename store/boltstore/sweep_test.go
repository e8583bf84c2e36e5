package boltstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// dueEntries returns the entries of expiry.
func dueEntries(t *testing.T, s *Store) []layout.DueEntry {
	t.Helper()
	var all []layout.DueEntry
	_ = s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(layout.ExpiryBucket)).ForEach(func(k, v []byte) error {
			e, ok := layout.DecodeDue(k, v)
			if !ok {
				t.Errorf("entry %x is damaged", k)
			}
			all = append(all, e)
			return nil
		})
	})
	return all
}

// TestSweepRunning lets the ttl of a conversation pass while a turn runs. After that the sweeper
// checks it once a minute.
func TestSweepRunning(t *testing.T) {
	c := newClock()
	s := open(t, newPath(t), store.Options{Now: c.Now})
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "a", Messages: text("question"), Begin: &parleyv1.Turn{Id: "turn"},
	}); err != nil {
		t.Fatal(err)
	}
	c.advance(30 * time.Minute)
	appendTo(t, s, "a", "another question")
	c.advance(30 * time.Minute)
	sweep(t, s)
	if e := dueEntries(t, s); len(e) != 1 || e[0].At != c.Now().Add(30*time.Minute).UnixNano() {
		t.Errorf("entries of expiry = %v, want one at the expire_time", e)
	}
	c.advance(time.Hour)
	for range 2 {
		sweep(t, s)
		want := c.Now().Truncate(time.Minute).Add(time.Minute)
		if e := dueEntries(t, s); len(e) != 1 || e[0].At != want.UnixNano() {
			t.Errorf("entries of expiry = %v, want one at %d", e, want.UnixNano())
		}
		c.advance(time.Minute)
	}
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "a", End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}); err != nil {
		t.Fatal(err)
	}
	wantConsistent(t, s)
}

// TestSweepHeld checks that the sweeper checks a held conversation once an hour after its
// expire_time.
func TestSweepHeld(t *testing.T) {
	s, c := openThree(t, store.Options{})
	hold(t, s, 0, "bad")
	c.advance(time.Hour)
	sweep(t, s)
	if e := dueEntries(t, s); len(e) != 1 || e[0].At != c.Now().Add(time.Hour).UnixNano() {
		t.Errorf("entries of expiry = %v, want one in an hour", e)
	}
	appendTo(t, s, "bad", "hello")
	hold(t, s, 0, "new")
	appendTo(t, s, "new", "hello")
	release(t, s, time.Minute, "bad")
	c.advance(time.Minute)
	sweep(t, s)
	if e := dueEntries(t, s); len(e) != 1 || e[0].At != c.Now().Add(time.Hour-time.Minute).UnixNano() {
		t.Errorf("entries of expiry = %v, want one at the expire_time of new", e)
	}
	wantConsistent(t, s)
}

// TestSweepDamaged checks that the sweeper defers a conversation that it cannot read by an hour.
func TestSweepDamaged(t *testing.T) {
	s, c := openThree(t, store.Options{})
	before := dueEntries(t, s)
	damage(t, s, layout.ConversationsBucket, badKey, flip(20))
	c.advance(2 * time.Hour)
	sweep(t, s)
	if e := dueEntries(t, s); len(e) != 1 || e[0].At != c.Now().Add(time.Hour).UnixNano() {
		t.Errorf("entries of expiry = %v, want the damaged one in an hour", e)
	}
	c.advance(time.Minute)
	// Another sweep that saw the entry before it was moved does not move it a second time.
	if err := s.writer.do(t.Context(), "acme", 0, func(x *txn) error {
		for _, e := range before {
			x.sweepExpiry(e, c.Now())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if e := dueEntries(t, s); len(e) != 1 {
		t.Errorf("entries of expiry = %v, want one", e)
	}
}

// TestSweepStray adds a second entry of a conversation in another minute, and an entry with a key
// that no conversation can have.
func TestSweepStray(t *testing.T) {
	s, c := openThree(t, store.Options{})
	if err := s.db.Update(func(tx *bolt.Tx) error {
		id := layout.IDKey("acme", "bad")
		p, err := layout.DecodePlace(id, tx.Bucket([]byte(layout.IDsBucket)).Get(id))
		stray := layout.ExpiryKey(p.Minute-59, "acme", p.Key)
		short := layout.DueKey(p.Minute-59, "acme", "short")
		b, at := tx.Bucket([]byte(layout.ExpiryBucket)), int64(p.Minute-59)*int64(time.Minute)
		return errors.Join(err, b.Put(stray, layout.EncodeDue(stray, at)), b.Put(short, layout.EncodeDue(short, at)))
	}); err != nil {
		t.Fatal(err)
	}
	c.advance(30 * time.Minute)
	sweep(t, s)
	if got := listIDs(t, s, "acme"); len(got) != 3 {
		t.Errorf("List = %v, want all", got)
	}
	wantConsistent(t, s)
}

// TestEarlierWithinMinute moves the expiry of a conversation to an earlier time in the same minute.
func TestEarlierWithinMinute(t *testing.T) {
	c := newClock() // The clock is at second 6.
	s := open(t, newPath(t), store.Options{Now: c.Now, TTL: 50 * time.Second})
	appendTo(t, s, "a", "hello")
	if _, err := s.Update(t.Context(), &store.Update{
		Tenant: "acme", ConversationID: "a", Fields: []string{"retention.ttl"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(10 * time.Second)}},
	}); err != nil {
		t.Fatal(err)
	}
	wantConsistent(t, s)
	c.advance(11 * time.Second)
	sweep(t, s)
	if stats, err := s.Stats(t.Context()); err != nil || stats.Expired != 1 {
		t.Errorf("Stats = %+v, %v; want one expired", stats, err)
	}
}

// TestExpiredAfterOthers creates a conversation at capacity when one of the tenant's conversations
// has expired. Very many expired ones of other tenants come before it, in the same minute and in
// earlier ones.
func TestExpiredAfterOthers(t *testing.T) {
	c := newClock()
	s := open(t, newPath(t), store.Options{Now: c.Now, MaxConversations: 2})
	create := func(tenant, id string, ttl time.Duration) {
		t.Helper()
		if _, err := s.Create(t.Context(), &store.Create{Tenant: tenant, Conversation: &parleyv1.Conversation{
			Id: id, Retention: &parleyv1.Retention{Ttl: durationpb.New(ttl)},
		}}); err != nil {
			t.Fatal(err)
		}
		c.advance(time.Nanosecond)
	}
	create("acme", "live", time.Hour)
	create("acme", "dead", 10*time.Minute)
	for i := range 400 { // With names that come before and after "acme".
		create(fmt.Sprint(string("az"[i%2]), i), "a", time.Duration(i%11)*time.Minute+time.Millisecond)
	}
	c.advance(11 * time.Minute)
	create("acme", "new", time.Hour)
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "live"}) {
		t.Errorf("List = %v, want new and live", got)
	}
	wantConsistent(t, s)
}

// TestExpiredAfterDamage adds an entry to expiry whose key is invalid.
func TestExpiredAfterDamage(t *testing.T) {
	s, c := openThree(t, store.Options{MaxConversations: 3})
	if _, err := s.Update(t.Context(), &store.Update{
		Tenant: "acme", ConversationID: "new", Fields: []string{"retention.ttl"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Minute)}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(layout.ExpiryBucket)).Put([]byte{0, 0, 1}, []byte("noise"))
	}); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Minute)
	appendTo(t, s, "newer", "hello")
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"newer", "bad", "old"}) {
		t.Errorf("List = %v, want new removed", got)
	}
}
