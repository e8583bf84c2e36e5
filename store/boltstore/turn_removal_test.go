package boltstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestManyTurnsRemoved removes conversations, and drops turns, whose entries are too many for one transaction. The
// turns are not found from then on, and each transaction removes a limited number of entries.
func TestManyTurnsRemoved(t *testing.T) {
	// Besides maxRemoved, a transaction removes the turns of the last chunk, and those that were in no chunk.
	const turns, bound = maxRemoved + 400, maxRemoved + 16 + 48
	now := time.Unix(1_800_000_000, 0)
	options := store.Options{TTL: time.Hour, Now: func() time.Time { return now }}
	for name, test := range map[string]struct {
		each   int // turns of each conversation
		remove func(t *testing.T, s *Store, ids []string)
	}{
		"delete": {turns, func(t *testing.T, s *Store, ids []string) {
			t.Helper()
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: ids[0]}); err != nil {
				t.Fatal(err)
			}
		}},
		"drop": {turns, func(t *testing.T, s *Store, ids []string) {
			t.Helper()
			keepTurns(t, s, ids[0], 1)
		}},
		"drop and delete": {turns, func(t *testing.T, s *Store, ids []string) {
			t.Helper()
			keepTurns(t, s, ids[0], 1)
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: ids[0]}); err != nil {
				t.Fatal(err)
			}
		}},
		"purge": {20, func(t *testing.T, s *Store, _ []string) {
			t.Helper()
			if _, err := s.Purge(t.Context(), &store.Purge{Tenant: "acme"}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for _, budget := range []int64{0, 1 << 20} {
			t.Run(fmt.Sprint(name, ", journal ", budget), func(t *testing.T) {
				t.Parallel()
				s := openJournaled(t, newPath(t), options, budget)
				var ids []string
				for n := range turns {
					if n%test.each == 0 {
						ids = append(ids, fmt.Sprint("c", n))
						keepTurns(t, s, ids[len(ids)-1], 10_000)
					}
					runTurn(t, s, ids[len(ids)-1], indexedTurn(n))
				}
				if s.folder != nil {
					s.folder.fold()
				}
				before := countIn(t, s, layout.TurnIDsBucket)
				test.remove(t, s, ids)
				left := countIn(t, s, layout.TurnIDsBucket)
				if removed := before - left; name != "drop and delete" && (removed > bound || removed < maxRemoved/2) {
					t.Errorf("%d of %d entries were removed, want from %d to %d", removed, before, maxRemoved/2, bound)
				}
				wantConsistent(t, s)
				var kept []string
				if name == "drop" {
					kept = append(kept, indexedTurn(turns-1))
				}
				wantTurns(t, s, "removed", kept, nil)
				if _, err := s.FindTurn(t.Context(), &store.FindTurn{
					Tenant: "acme", TurnID: indexedTurn(turns - 2),
				}); !errors.Is(err, store.ErrTurnNotFound) {
					t.Errorf("FindTurn of a removed turn = %v, want ErrTurnNotFound", err)
				}
				sweep(t, s)
				if n := countIn(t, s, layout.TurnIDsBucket, layout.TurnChunksBucket, layout.OrphansBucket); n != len(kept) {
					t.Errorf("%d entries are left after the sweep, want %d", n, len(kept))
				}
				wantConsistent(t, s)
			})
		}
	}
}

// TestDamagedTurns damages each kind of entry of turns. Check finds the damage, and what is not damaged can be read.
func TestDamagedTurns(t *testing.T) {
	flip := func(b *bolt.Bucket, key []byte, at int) error {
		value := slices.Clone(b.Get(key))
		value[len(value)+at] ^= 1
		return b.Put(key, value)
	}
	id, _ := record.ParseTurnID(indexedTurn(0))
	entry := layout.TurnKey("acme", id)
	stray, _ := record.ParseTurnID(indexedTurn(900))
	strayEntry := layout.TurnKey("acme", stray)
	for name, test := range map[string]struct {
		damage func(ids, chunks *bolt.Bucket, conversation, chunk []byte) error
		fault  string
		found  bool // turn 0 is found by its id alone
	}{
		"a missing entry": {func(ids, _ *bolt.Bucket, _, _ []byte) error {
			return ids.Delete(entry)
		}, "has no entry in turnids", false},
		"a damaged entry": {func(ids, _ *bolt.Bucket, _, _ []byte) error {
			return flip(ids, entry, -1)
		}, "entry of the id of a turn", false},
		"an entry too many": {func(ids, _ *bolt.Bucket, conversation, _ []byte) error {
			return ids.Put(strayEntry, layout.EncodeTurn(strayEntry, layout.InnerKey(conversation[len("4acme"):])))
		}, "does not keep it", true},
		"an entry of a missing conversation": {func(ids, _ *bolt.Bucket, _, _ []byte) error {
			return ids.Put(strayEntry, layout.EncodeTurn(strayEntry, layout.InnerKey{1}))
		}, "does not keep it", true},
		"an invalid key": {func(ids, _ *bolt.Bucket, _, _ []byte) error {
			return ids.Put([]byte("\x04acmex"), nil)
		}, "is not the key of a turn", true},
		"a missing chunk": {func(_, chunks *bolt.Bucket, _, chunk []byte) error {
			return chunks.Delete(chunk)
		}, "chunk 1 of its turns follows chunk -1", false},
		"a damaged chunk": {func(_, chunks *bolt.Bucket, _, chunk []byte) error {
			return flip(chunks, chunk, -9)
		}, "chunk 0 of its turns", false},
		"a chunk too many": {func(_, chunks *bolt.Bucket, conversation, _ []byte) error {
			key := layout.TurnChunkKey(conversation, 99)
			return chunks.Put(key, layout.EncodeTurnChunk(key, nil))
		}, "chunk 99 of its turns", true},
		"a chunk of a missing conversation": {func(_, chunks *bolt.Bucket, _, _ []byte) error {
			key := layout.TurnChunkKey(layout.ConversationKey("acme", layout.InnerKey{1}), 0)
			return chunks.Put(key, layout.EncodeTurnChunk(key, nil))
		}, "leads to no conversation", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			s := openJournaled(t, path, store.Options{}, 0)
			keepTurns(t, s, "a", 300)
			for n := range 140 {
				runTurn(t, s, "a", indexedTurn(n))
			}
			if err := s.db.Update(func(tx *bolt.Tx) error {
				conversation, _ := tx.Bucket([]byte(layout.ConversationsBucket)).Cursor().First()
				chunks := tx.Bucket([]byte(layout.TurnChunksBucket))
				chunk, _ := chunks.Cursor().First()
				return test.damage(tx.Bucket([]byte(layout.TurnIDsBucket)), chunks, slices.Clone(conversation), slices.Clone(chunk))
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.FindTurn(t.Context(), &store.FindTurn{
				Tenant: "acme", TurnID: indexedTurn(0),
			}); (err == nil) != test.found {
				t.Errorf("FindTurn of turn 0 = %v, want it found: %t", err, test.found)
			}
			for _, n := range []int{70, 139} {
				found, err := s.FindTurn(t.Context(), &store.FindTurn{Tenant: "acme", TurnID: indexedTurn(n)})
				if err != nil || found.Turn.GetId() != indexedTurn(n) {
					t.Errorf("FindTurn of turn %d = %v, %v", n, found, err)
				}
			}
			if got := listedTurns(t, s); len(got) < 100 || slices.Contains(got, indexedTurn(900)) {
				t.Errorf("ListTurns = %d turns, want most of 140", len(got))
			}
			runTurn(t, s, "a", indexedTurn(140))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var faults []string
			if _, err := Check(path, func(fault string) { faults = append(faults, fault) }); !errors.Is(err, ErrDamaged) ||
				!strings.Contains(strings.Join(faults, "\n"), test.fault) {
				t.Errorf("Check = %v, faults %q, want one with %q", err, faults, test.fault)
			}
		})
	}
}
