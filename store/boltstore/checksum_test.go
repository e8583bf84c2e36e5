package boltstore

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// badExpiryKey returns the key of conversation "bad" in expiry.
func badExpiryKey(tx *bolt.Tx) []byte {
	id := layout.IDKey("acme", "bad")
	p, err := layout.DecodePlace(id, tx.Bucket([]byte(layout.IDsBucket)).Get(id))
	if err != nil {
		panic(err)
	}
	return layout.ExpiryKey(p.Minute, "acme", p.Key)
}

// flipBit returns a function that flips one bit.
func flipBit(bit int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[bit/8] ^= 1 << (bit % 8)
		return b
	}
}

// wantAllCorrupt fails the test unless every call about "bad" returns ErrCorrupt and no
// conversation disappears.
func wantAllCorrupt(t *testing.T, s *Store, bit int) {
	t.Helper()
	ctx := t.Context()
	_, errRead := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: "bad", Newest: -1})
	_, errHeader := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: "bad"})
	_, errAppend := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "bad", Messages: text("more")})
	_, errCreate := s.Create(ctx, &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "bad"}})
	_, errUpdate := s.Update(ctx, &store.Update{Tenant: "acme", ConversationID: "bad", KeepThrough: new(int32)})
	errProgress := s.SaveProgress(ctx, &store.Progress{Tenant: "acme", ConversationID: "bad", TurnID: "turn"})
	errDelete := s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "bad"})
	for i, err := range []error{errRead, errHeader, errAppend, errCreate, errUpdate, errProgress, errDelete} {
		if !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("bit %d: call %d = %v, want ErrCorrupt", bit, i, err)
		}
	}
	if stats, err := s.Stats(ctx); err != nil || stats.Conversations != 3 {
		t.Errorf("bit %d: Stats = %+v, %v; want three conversations", bit, stats, err)
	}
}

// TestDamagedIDBits flips each bit of an entry in ids, one at a time.
func TestDamagedIDBits(t *testing.T) {
	s, _ := openThree(t, store.Options{})
	for bit := range 8 * (len(layout.InnerKey{}) + 4 + 4) {
		damage(t, s, layout.IDsBucket, keyOf("bad"), flipBit(bit))
		wantAllCorrupt(t, s, bit)
		damage(t, s, layout.IDsBucket, keyOf("bad"), flipBit(bit))
	}
	wantConsistent(t, s)
}

// TestDamagedKeyBits moves a conversation to each key that differs in one bit, and back.
func TestDamagedKeyBits(t *testing.T) {
	s, _ := openThree(t, store.Options{})
	var key []byte
	_ = s.db.View(func(tx *bolt.Tx) error {
		key = badKey(tx)
		return nil
	})
	move := func(from, to []byte) {
		t.Helper()
		if err := s.db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(layout.ConversationsBucket))
			return errors.Join(b.Put(to, bytes.Clone(b.Get(from))), b.Delete(from))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for bit := range 8 * len(key) {
		wrong := flipBit(bit)(bytes.Clone(key))
		move(key, wrong)
		wantAllCorrupt(t, s, bit)
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "old"}) {
			t.Errorf("bit %d: List = %v, want new and old", bit, got)
		}
		if tenant, _, ok := layout.CutTenant(wrong); ok && tenant != "acme" {
			if got := listIDs(t, s, tenant); len(got) != 0 {
				t.Errorf("bit %d: List of tenant %q = %v, want none", bit, tenant, got)
			}
		}
		move(wrong, key)
	}
	wantConsistent(t, s)
}

// TestDamagedDueBits flips each bit of the key and value of an entry in expiry, one at a time. The
// sweeper must skip the entry.
func TestDamagedDueBits(t *testing.T) {
	s, c := openThree(t, store.Options{})
	var key, value []byte
	_ = s.db.View(func(tx *bolt.Tx) error {
		key = badExpiryKey(tx)
		value = bytes.Clone(tx.Bucket([]byte(layout.ExpiryBucket)).Get(key))
		return nil
	})
	c.advance(100 * 365 * 24 * time.Hour) // Every minute that a flip can produce has passed.
	replace := func(before, key, value []byte) {
		t.Helper()
		if err := s.db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(layout.ExpiryBucket))
			return errors.Join(b.Delete(before), b.Put(key, value))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for bit := range 8 * (len(key) + len(value)) {
		both := flipBit(bit)(slices.Concat(key, value))
		wrong := both[:len(key)]
		replace(key, wrong, both[len(key):])
		due, more, err := s.readDue(t.Context(), dueBucket{layout.ExpiryBucket, layout.MinuteOf, nil}, 10)
		if len(due) != 2 || more || err != nil {
			t.Errorf("bit %d: readDue = %v, %v, %v; want the other two entries", bit, due, more, err)
		}
		replace(wrong, key, value)
	}
	sweep(t, s)
	wantConsistent(t, s)
}

// TestDamagedDue damages an entry in expiry permanently.
func TestDamagedDue(t *testing.T) {
	// expired returns a store with an expired conversation that the sweeper cannot find.
	expired := func(t *testing.T) *Store {
		t.Helper()
		s, c := openThree(t, store.Options{MaxConversations: 3})
		damage(t, s, layout.ExpiryBucket, badExpiryKey, flip(-1))
		c.advance(2 * time.Hour)
		sweep(t, s)
		_ = s.db.View(func(tx *bolt.Tx) error {
			if n := countEntries(tx, layout.ExpiryBucket); n != 1 {
				t.Errorf("expiry has %d entries, want the damaged one", n)
			}
			return nil
		})
		_, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "bad", Newest: -1})
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Read of the expired conversation = %v, want ErrNotFound", err)
		}
		return s
	}
	t.Run("deleted", func(t *testing.T) {
		s, _ := openThree(t, store.Options{})
		damage(t, s, layout.ExpiryBucket, badExpiryKey, flip(-1))
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
			t.Fatal(err)
		}
		wantConsistent(t, s)
	})
	t.Run("created again", func(t *testing.T) {
		s := expired(t)
		appendTo(t, s, "bad", "hello")
		wantConsistent(t, s)
	})
	t.Run("removed at capacity", func(t *testing.T) {
		s := expired(t)
		for _, id := range []string{"a", "b", "c"} {
			appendTo(t, s, id, "hello")
		}
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"c", "b", "a"}) {
			t.Errorf("List = %v, want c, b and a", got)
		}
		wantConsistent(t, s)
	})
}

// TestDamagedWhileRunning deletes a damaged conversation with a running turn that the store cannot
// read.
func TestDamagedWhileRunning(t *testing.T) {
	s, _ := openThree(t, store.Options{})
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "bad", Messages: text("question"), Begin: &parleyv1.Turn{Id: "turn"},
	}); err != nil {
		t.Fatal(err)
	}
	damage(t, s, layout.ConversationsBucket, badKey, flip(20))
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
		t.Fatal(err)
	}
	_ = s.db.View(func(tx *bolt.Tx) error {
		if n := countEntries(tx, layout.TurnsBucket); n != 0 {
			t.Errorf("turns has %d entries, want none", n)
		}
		return nil
	})
}
