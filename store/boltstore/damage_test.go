package boltstore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// damage changes the value of one key of a bucket. key finds the key.
func damage(t *testing.T, s *Store, bucket string, key func(*bolt.Tx) []byte, change func([]byte) []byte) {
	t.Helper()
	err := s.db.Update(func(tx *bolt.Tx) error {
		b, k := tx.Bucket([]byte(bucket)), key(tx)
		value := b.Get(k)
		if value == nil {
			return errors.New("nothing there to damage")
		}
		return b.Put(k, change(slices.Clone(value)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// badKey returns the key of conversation "bad" in conversations.
func badKey(tx *bolt.Tx) []byte {
	id := layout.IDKey("acme", "bad")
	p, err := layout.DecodePlace(id, tx.Bucket([]byte(layout.IDsBucket)).Get(id))
	if err != nil {
		panic(err)
	}
	return layout.ConversationKey("acme", p.Key)
}

func keyOf(id string) func(*bolt.Tx) []byte {
	return func(*bolt.Tx) []byte { return layout.IDKey("acme", id) }
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[(at+len(b))%len(b)] ^= 0x10
		return b
	}
}

// openThree opens a store with conversations "old", "bad" and "new", created in this order.
func openThree(t *testing.T, o store.Options) (*Store, *clock) {
	t.Helper()
	c := newClock()
	o.Now = c.Now
	s := open(t, newPath(t), o)
	for _, id := range []string{"old", "bad", "new"} {
		appendTo(t, s, id, "hello")
		c.advance(time.Second)
	}
	return s, c
}

func TestDamagedRecord(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"header":   flip(20),
		"messages": flip(-1),
		"cut off":  func(b []byte) []byte { return b[:5] },
		"empty":    func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var observed []string
			s, c := openThree(t, store.Options{MaxConversations: 3, Observe: func(changes []store.Change) {
				for _, change := range changes {
					observed = append(observed, strings.TrimPrefix(change.Kind.String(), "CHANGE_KIND_")+" "+change.ConversationID)
				}
			}})
			damage(t, s, layout.ConversationsBucket, badKey, change)
			ctx := t.Context()
			_, errRead := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: "bad", Newest: -1})
			_, errAppend := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "bad", Messages: text("more")})
			_, errCreate := s.Create(ctx, &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "bad"}})
			_, errUpdate := s.Update(ctx, &store.Update{Tenant: "acme", ConversationID: "bad", KeepThrough: new(int32)})
			for i, err := range []error{errRead, errAppend, errCreate, errUpdate} {
				if !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("call %d = %v, want ErrCorrupt", i, err)
				}
			}
			if err := s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "bad", IfVersion: new(int32)}); err == nil {
				t.Error("Delete with a version succeeded, although the version is unknown")
			}
			appendTo(t, s, "old", "more")
			observed = nil
			if err := s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
				t.Fatal(err)
			}
			if want := []string{"DELETED bad"}; !slices.Equal(observed, want) {
				t.Errorf("observed changes = %v, want %v", observed, want)
			}
			c.advance(3 * time.Hour)
			sweep(t, s)
			wantConsistent(t, s)
		})
	}
}

// TestDamagedIsSkipped damages a header. Calls about other conversations must not be affected.
func TestDamagedIsSkipped(t *testing.T) {
	s, c := openThree(t, store.Options{MaxConversations: 3})
	damage(t, s, layout.ConversationsBucket, badKey, flip(20))
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "old"}) {
		t.Errorf("List = %v, want new and old", got)
	}
	appendTo(t, s, "newer", "hello")  // Evicts old.
	appendTo(t, s, "newest", "hello") // Evicts new, skips bad.
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"newest", "newer"}) {
		t.Errorf("List after evictions = %v, want newest and newer", got)
	}
	c.advance(time.Hour)
	for range 3 { // The damaged one is due first, but only once.
		if _, err := s.Sweep(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 1 || stats.Expired != 2 ||
		stats.Evicted != 2 {
		t.Errorf("Stats = %+v, %v; want only the damaged conversation", stats, err)
	}
	_ = s.db.View(func(tx *bolt.Tx) error {
		if n := countEntries(tx, layout.ExpiryBucket); n != 1 {
			t.Errorf("expiry has %d entries, want the deferred one", n)
		}
		return nil
	})
	if purged, err := s.Purge(t.Context(), &store.Purge{Tenant: "acme"}); err != nil || purged.Count != 0 {
		t.Errorf("Purge = %+v, %v; want 0", purged, err)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Hour)
	sweep(t, s) // Removes the entry that the sweeper had moved.
	wantConsistent(t, s)
}

// TestDamagedID makes an entry in ids lead to another conversation, or to none.
func TestDamagedID(t *testing.T) {
	for name, change := range map[string]func(other []byte) func([]byte) []byte{
		"another": func(other []byte) func([]byte) []byte { return func([]byte) []byte { return other } },
		"none":    func([]byte) func([]byte) []byte { return flip(3) },
		"short":   func([]byte) func([]byte) []byte { return func(b []byte) []byte { return b[:7] } },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := openThree(t, store.Options{})
			var other []byte
			_ = s.db.View(func(tx *bolt.Tx) error {
				other = slices.Clone(tx.Bucket([]byte(layout.IDsBucket)).Get(layout.IDKey("acme", "new")))
				return nil
			})
			damage(t, s, layout.IDsBucket, keyOf("bad"), change(other))
			_, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "bad", Newest: -1})
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("Read = %v, want ErrCorrupt", err)
			}
			if err := s.Delete(t.Context(), &store.Delete{
				Tenant: "acme", ConversationID: "bad",
			}); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("Delete = %v, want ErrCorrupt, since the record cannot be found", err)
			}
			if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "bad", "old"}) {
				t.Errorf("List = %v, want all three", got)
			}
			if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 3 || stats.Messages != 3 {
				t.Errorf("Stats = %+v, %v; want three conversations", stats, err)
			}
			if _, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "new", Newest: -1}); err != nil {
				t.Errorf("Read of new after deleting bad = %v", err)
			}
		})
	}
}

func TestDamagedProgress(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "a", Messages: text("question"), Begin: &parleyv1.Turn{Id: "turn"},
		Events: &storev1.TurnEvents{Started: 1},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveProgress(t.Context(), &store.Progress{
		Tenant: "acme", ConversationID: "a", TurnID: "turn", Messages: text("so far"),
		Events: &storev1.TurnEvents{Started: 2},
	}); err != nil {
		t.Fatal(err)
	}
	damage(t, s, layout.TurnsBucket, keyOf("a"), flip(-1))
	s.Close()
	turns, _, err := open(t, path, store.Options{}).Abandoned(t.Context(), "")
	if err != nil || len(turns) != 1 || turns[0].TurnID != "turn" || turns[0].Messages != nil {
		t.Fatalf("Abandoned = %+v, %v; want the turn without its answer", turns, err)
	}
	if events := turns[0].Events; events.GetStarted() != 1 || events.GetTurnId() != "turn" ||
		events.GetConversationVersion() != 1 {
		t.Errorf("events = %v, want those of the begin", events)
	}
}
