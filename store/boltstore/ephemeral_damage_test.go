package boltstore

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// badEndKey returns the key of id "bad" in ends.
func badEndKey(tx *bolt.Tx) []byte {
	key := layout.IDKey("acme", "bad")
	m, ok := layout.DecodeEphemeral(key, tx.Bucket([]byte(layout.SessionsBucket)).Get(key))
	if !ok {
		panic("bad is not ephemeral")
	}
	return layout.EndKey(m.DeleteAt, "acme", "bad")
}

// flipEachBit flips each bit of the key and value of an entry, one at a time, and calls check each
// time.
func flipEachBit(t *testing.T, s *Store, bucket string, find func(*bolt.Tx) []byte, check func(bit int)) {
	t.Helper()
	var key, value []byte
	replace := func(before, key, value []byte) {
		t.Helper()
		if err := s.db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			return errors.Join(b.Delete(before), b.Put(key, value))
		}); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.db.View(func(tx *bolt.Tx) error {
		key = find(tx)
		value = bytes.Clone(tx.Bucket([]byte(bucket)).Get(key))
		return nil
	})
	for bit := range 8 * (len(key) + len(value)) {
		both := flipBit(bit)(slices.Concat(key, value))
		wrong := both[:len(key)]
		replace(key, wrong, both[len(key):])
		check(bit)
		replace(wrong, key, value)
	}
	wantConsistent(t, s)
}

// TestDamagedEphemeralBits damages entries in sessions. Their ids count as not ephemeral.
func TestDamagedEphemeralBits(t *testing.T) {
	t.Run("held", func(t *testing.T) {
		s, c := openThree(t, store.Options{})
		hold(t, s, 0, "bad")
		flipEachBit(t, s, layout.SessionsBucket, keyOf("bad"), func(bit int) {
			if !exists(t, s, "bad") {
				t.Errorf("bit %d: not found before its expire_time", bit)
			}
		})
		c.advance(2 * time.Hour)
		flipEachBit(t, s, layout.SessionsBucket, keyOf("bad"), func(bit int) {
			if exists(t, s, "bad") || len(listIDs(t, s, "acme")) > 0 {
				t.Errorf("bit %d: found after its expire_time", bit)
			}
		})
		if !exists(t, s, "bad") {
			t.Error("not found, although it is held")
		}
	})
	t.Run("ended", func(t *testing.T) {
		s, c := openThree(t, store.Options{})
		hold(t, s, 0, "bad")
		release(t, s, time.Minute, "bad")
		c.advance(time.Minute)
		flipEachBit(t, s, layout.SessionsBucket, keyOf("bad"), func(bit int) {
			if !exists(t, s, "bad") {
				t.Errorf("bit %d: not found", bit)
			}
		})
		if exists(t, s, "bad") {
			t.Error("found after its end")
		}
	})
}

// TestDamagedEndBits damages an entry in ends. Its conversation is neither swept nor found.
func TestDamagedEndBits(t *testing.T) {
	s, c := openThree(t, store.Options{})
	hold(t, s, 0, "bad")
	release(t, s, time.Minute, "bad")
	c.advance(100 * 365 * 24 * time.Hour)
	flipEachBit(t, s, layout.EndsBucket, badEndKey, func(bit int) {
		if due, more, err := s.readDue(t.Context(), dueBucket{layout.EndsBucket, layout.SecondOf, nil}, 10); len(due) != 0 ||
			more || err != nil {
			t.Errorf("bit %d: readDue = %v, %v, %v; want none", bit, due, more, err)
		}
		if exists(t, s, "bad") {
			t.Errorf("bit %d: found after its end", bit)
		}
	})
}

// TestDamagedEphemeral damages entries permanently. No other conversation may be deleted for that,
// and none may stay forever.
func TestDamagedEphemeral(t *testing.T) {
	start := func(t *testing.T) (*Store, *clock) {
		t.Helper()
		s, c := openThree(t, store.Options{MaxConversations: 3})
		hold(t, s, 0, "bad")
		release(t, s, time.Minute, "bad")
		return s, c
	}
	t.Run("sessions", func(t *testing.T) {
		s, c := start(t)
		damage(t, s, layout.SessionsBucket, keyOf("bad"), flip(-1))
		c.advance(time.Minute)
		sweep(t, s)
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "bad", "old"}) {
			t.Errorf("List = %v, want all", got)
		}
		s.Close()
		s = open(t, s.path, store.Options{Now: c.Now})
		c.advance(time.Hour)
		sweep(t, s)
		if stats, err := s.Stats(t.Context()); err != nil || stats.Expired != 3 {
			t.Errorf("Stats = %+v, %v; want all three expired", stats, err)
		}
		hold(t, s, time.Hour, "bad")
		wantConsistent(t, s)
	})
	t.Run("sessions, while it is held", func(t *testing.T) {
		s, c := start(t)
		hold(t, s, 0, "bad")
		c.advance(2 * time.Hour)
		sweep(t, s) // The sweeper finds that bad does not expire.
		damage(t, s, layout.SessionsBucket, keyOf("bad"), flip(-1))
		release(t, s, 0, "bad")
		if exists(t, s, "bad") {
			t.Error("bad is found after its release")
		}
		c.advance(time.Hour)
		sweep(t, s)
		if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 0 || stats.Expired != 3 {
			t.Errorf("Stats = %+v, %v; want all three expired", stats, err)
		}
	})
	t.Run("ends", func(t *testing.T) {
		s, c := start(t)
		damage(t, s, layout.EndsBucket, badEndKey, flip(-1))
		c.advance(30 * time.Minute)
		sweep(t, s)
		if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 3 || exists(t, s, "bad") {
			t.Errorf("Stats = %+v, %v; want nothing swept", stats, err)
		}
		c.advance(30 * time.Minute)
		sweep(t, s)
		if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 0 || stats.Expired != 2 {
			t.Errorf("Stats = %+v, %v; want bad deleted, and two expired", stats, err)
		}
		wantConsistent(t, s)
	})
	t.Run("additional entries in ends", func(t *testing.T) {
		s, c := start(t)
		hold(t, s, 0, "new")
		if err := s.db.Update(func(tx *bolt.Tx) error {
			at := layout.Nanosecond(c.Now())
			var errs []error
			for _, id := range []string{"old", "bad", "new", "none"} {
				key := layout.EndKey(at, "acme", id)
				errs = append(errs, tx.Bucket([]byte(layout.EndsBucket)).Put(key, layout.EncodeDue(key, at)))
			}
			return errors.Join(errs...)
		}); err != nil {
			t.Fatal(err)
		}
		appendTo(t, s, "newer", "hello")
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"newer", "new", "bad"}) {
			t.Errorf("List = %v, want the oldest evicted", got)
		}
		sweep(t, s)
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"newer", "new", "bad"}) {
			t.Errorf("List = %v, want it unchanged", got)
		}
		wantConsistent(t, s)
	})
	t.Run("conversation", func(t *testing.T) {
		s, c := start(t)
		hold(t, s, 0, "old")
		damage(t, s, layout.ConversationsBucket, badKey, flip(20))
		c.advance(time.Minute)
		sweep(t, s)
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "old"}) {
			t.Errorf("List = %v, want new and old", got)
		}
		if _, err := s.Read(t.Context(), &store.Read{
			Tenant: "acme", ConversationID: "bad",
		}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Read = %v, want ErrCorrupt", err)
		}
		hold(t, s, 0, "bad")
		release(t, s, 0, "bad")
		if n := s.tally.ephemeralCounts["acme"]; n != 1 {
			t.Errorf("%d ids are ephemeral, want only old", n)
		}
	})
}
