package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// TestDamagedRecordKeys flips a bit in each key of a record in the file, in leaves and in branches. A read must return
// all records of a conversation or of the tenant, or store.ErrCorrupt. A write that depends on a record must not take it
// for one that does not exist.
func TestDamagedRecordKeys(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	scopes := []string{"", "one", "a few", "many"}
	revisions := map[string]map[string]int64{}
	for n, id := range scopes {
		if id != "" {
			appendTo(t, s, id, "hello")
		}
		revisions[id] = map[string]int64{}
		for i := range []int{3, 1, 4, 60}[n] {
			key := fmt.Sprintf("key %d of %s", i, id)
			written := write(t, s, id, putOf(key, 100))
			revisions[id][key] = written.Revision + written.TenantRevision // One of them is 0.
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random, damaged := rand.New(rand.NewPCG(1, 2)), 0
	for _, at := range placesOf(file, "key ") {
		content, prefix := bytes.Clone(file), len(layout.TenantScope("acme"))
		if !bytes.HasSuffix(file[:at], layout.TenantScope("acme")) {
			prefix = len(layout.ConversationScope("acme", layout.InnerKey{}))
		}
		content[at-prefix+random.IntN(prefix+len("key 0"))] ^= 1 << random.IntN(8)
		other := filepath.Join(t.TempDir(), "parley.db")
		if err := os.WriteFile(other, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(other, Options{})
		if errors.Is(err, ErrDamaged) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		s.db.NoSync = true
		for id, keys := range revisions {
			if !readsAll(t, s, id, keys) {
				damaged++
			}
		}
		s.Close()
	}
	if damaged == 0 {
		t.Error("no damage was reported; the test proves nothing")
	}
}

// placesOf returns where mark is in a file.
func placesOf(file []byte, mark string) (places []int) {
	for at := range file {
		if bytes.HasPrefix(file[at:], []byte(mark)) {
			places = append(places, at)
		}
	}
	return places
}

// readsAll reads the records of a conversation in all ways. It returns false if one of them is damaged, and makes the
// test fail if one is missing.
func readsAll(t *testing.T, s *Store, id string, revisions map[string]int64) (sound bool) {
	t.Helper()
	sound = true
	isCorrupt := func(err error) bool {
		if err != nil && !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
		sound = sound && err == nil
		return err != nil
	}
	for _, prefix := range []string{"", "key 1", "key 2"} {
		want := 0
		for key := range revisions {
			if strings.HasPrefix(key, prefix) {
				want++
			}
		}
		for _, descending := range []bool{false, true} {
			list, _, err := s.ListRecords(t.Context(), &store.ListRecords{
				Tenant: "acme", ConversationID: id, Prefix: prefix, Limit: 1000, MaxBytes: 1 << 20, Descending: descending,
			})
			if !isCorrupt(err) && len(list) != want {
				t.Errorf("%q: ListRecords(%q) = %d records, want %d", id, prefix, len(list), want)
			}
		}
	}
	for key, revision := range revisions {
		got, err := getRecords(t.Context(), s, &store.GetRecords{
			Tenant: "acme", ConversationID: id, Keys: []string{key}, MaxBytes: 1 << 20,
		})
		if !isCorrupt(err) && (len(got) != 1 || got[0].GetKey() != key || got[0].GetRevision() != revision) {
			t.Errorf("%q: GetRecords(%q) = %.200v, want revision %d", id, key, got, revision)
		}
		_, err = s.WriteRecords(t.Context(), &store.WriteRecords{
			Tenant: "acme", ConversationID: id, Writes: []*parleyv1.RecordWrite{{Key: key, IfRevision: new(int64)}},
		})
		if err == nil {
			t.Errorf("%q: a write of %q that must not exist succeeded", id, key)
		}
	}
	return sound
}

// TestDamagedNeighbor checks that a damaged record affects only its conversation: one beside it can still tell which
// records it does not have.
func TestDamagedNeighbor(t *testing.T) {
	s := open(t, newPath(t), store.Options{})
	for _, id := range []string{"a", "b", "c"} {
		appendTo(t, s, id, "hello")
		write(t, s, id, putOf("k", 10))
	}
	if err := s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(layout.RecordsBucket))
		c := b.Cursor()
		_, _ = c.First()
		key, value := c.Next() // That of b.
		value = bytes.Clone(value)
		value[1] ^= 1
		return b.Put(bytes.Clone(key), value)
	}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "c"} {
		for _, key := range []string{"j", "l"} {
			found, err := getRecords(t.Context(), s, &store.GetRecords{
				Tenant: "acme", ConversationID: id, Keys: []string{key}, MaxBytes: 1,
			})
			if len(found) != 0 || err != nil {
				t.Errorf("GetRecords(%q) of %s = %v, %v, want none", key, id, found, err)
			}
			write(t, s, id, putOf(key, 10))
		}
		if got, want := recordKeys(t, s, id), recordKeys(t, s, "a"); got != want {
			t.Errorf("records of %s = %s, want %s", id, got, want)
		}
	}
	if _, _, err := s.ListRecords(t.Context(), &store.ListRecords{
		Tenant: "acme", ConversationID: "b", Limit: 10, MaxBytes: 1000,
	}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("ListRecords of b = %v, want ErrCorrupt", err)
	}
}
