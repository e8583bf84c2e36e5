package boltstore

import (
	"fmt"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/chunks"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// createDropped creates conversation "a" with 1000 chunks at least, and lowers its limit of messages. It returns the
// number of chunks that are left.
func createDropped(t *testing.T, s *Store, limit int) (left int) {
	t.Helper()
	const messages = 3000
	createLong(t, s, "a", messages)
	before := countIn(t, s, layout.ChunksBucket)
	if before < messages/3 {
		t.Fatalf("%d chunks of %d messages", before, messages)
	}
	u := &store.Update{
		Tenant: "acme", ConversationID: "a", Fields: []string{"retention.keep_all", "retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: int32(limit)}},
	}
	if _, err := s.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	left = countIn(t, s, layout.ChunksBucket)
	if before-left > chunks.MaxDropped {
		t.Errorf("Update removed %d chunks, want %d at most", before-left, chunks.MaxDropped)
	}
	wantNumbers(t, s, "a", messages-limit, messages-1)
	wantConsistent(t, s)
	return left
}

// TestDropMany drops messages in more chunks than one write removes. Nothing but their space stays, until later writes
// and Sweep remove them.
func TestDropMany(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		for _, limit := range []int{1, 20} { // With 1, no message in a chunk is left.
			t.Run(fmt.Sprint("journal ", budget, ", limit ", limit), func(t *testing.T) {
				s := openDivided(t, newPath(t), store.Options{}, budget, 20)
				left := createDropped(t, s, limit)
				u := &store.Update{Tenant: "acme", ConversationID: "a", KeepThrough: new(int32(2999))}
				if _, err := s.Update(t.Context(), u); err != nil {
					t.Fatal(err)
				}
				wantNumbers(t, s, "a", 3000-limit, 2998)
				wantConsistent(t, s)
				for i := 3000; i < 3030; i++ {
					appendNumbers(t, s, "a", i, i)
					if s.folder != nil && i%7 == 0 {
						s.folder.fold()
					}
					wantConsistent(t, s)
				}
				wantNumbers(t, s, "a", 3030-limit, 3029)
				if n := countIn(t, s, layout.ChunksBucket); n >= left {
					t.Errorf("%d chunks are left after later writes, want fewer than %d", n, left)
				}
				kill(t, s)
				wantSound(t, s.path)
				s = openDivided(t, s.path, store.Options{}, budget, 20)
				sweep(t, s)
				if n := countIn(t, s, layout.OrphansBucket); n != 0 {
					t.Errorf("%d orphans are left after Sweep, want none", n)
				}
				if n := countIn(t, s, layout.ChunksBucket); n > limit+1 {
					t.Errorf("%d chunks are left after Sweep, want %d at most", n, limit+1)
				}
				wantNumbers(t, s, "a", 3030-limit, 3029)
				wantConsistent(t, s)
			})
		}
	}
}

// TestDropManySweep sweeps dropped chunks of a conversation that is not written again, in bounded steps, and deletes a
// conversation with dropped chunks.
func TestDropManySweep(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		s := openDivided(t, newPath(t), store.Options{}, 0, 20)
		left := createDropped(t, s, 20)
		if deleted {
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
				t.Fatal(err)
			}
			left = countIn(t, s, layout.ChunksBucket)
			wantConsistent(t, s)
		}
		for more := true; more; {
			var err error
			if more, err = s.Sweep(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			n := countIn(t, s, layout.ChunksBucket)
			if left-n > maxRemoved {
				t.Errorf("a step of Sweep removed %d chunks, want %d at most", left-n, maxRemoved)
			}
			left = n
			wantConsistent(t, s)
		}
		want := 21
		if deleted {
			want = 0
		} else {
			wantNumbers(t, s, "a", 2980, 2999)
		}
		if left > want {
			t.Errorf("%d chunks are left, want %d at most", left, want)
		}
	}
}

// TestCheckDropped checks that Check reports dropped chunks that nothing removes, and retained ones that the sweep would
// remove.
func TestCheckDropped(t *testing.T) {
	for name, test := range map[string]struct {
		write func(b *bolt.Bucket, key []byte) error
		want  string
	}{
		"lost": {(*bolt.Bucket).Delete, "retains no message"},
		"damaged": {func(b *bolt.Bucket, key []byte) error {
			return b.Put(key, []byte{1})
		}, "is damaged"},
		"sequence": {func(b *bolt.Bucket, key []byte) error {
			o, _ := layout.DecodeOrphan(key, layout.EncodeOrphan(key))
			o.Before += 2
			return b.Put(o.Key(), layout.EncodeOrphan(o.Key()))
		}, "would be swept"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openDivided(t, newPath(t), store.Options{}, 0, 20)
			createDropped(t, s, 20)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			wantSound(t, s.path)
			updateFile(t, s.path, func(tx *bolt.Tx) error {
				b := tx.Bucket([]byte(layout.OrphansBucket))
				key, _ := b.Cursor().First()
				return test.write(b, key)
			})
			var faults []string
			if _, err := Check(s.path, func(fault string) { faults = append(faults, fault) }); err == nil ||
				!strings.Contains(strings.Join(faults, "\n"), test.want) {
				t.Errorf("Check() = %v, faults %q, want %q", err, faults, test.want)
			}
		})
	}
}
