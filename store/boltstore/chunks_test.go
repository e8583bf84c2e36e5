package boltstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// chunkKeys returns the keys of all chunks in a store's file, which may have no bucket for them.
func chunkKeys(tb testing.TB, s *Store) (keys [][]byte) {
	tb.Helper()
	if err := s.db.View(func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(layout.ChunksBucket)); b != nil {
			return b.ForEach(func(key, _ []byte) error {
				keys = append(keys, slices.Clone(key))
				return nil
			})
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return keys
}

// appendNumbers appends messages to a conversation of tenant "acme", each with its number and some words.
func appendNumbers(tb testing.TB, s *Store, id string, from, to int) {
	tb.Helper()
	for i := from; i <= to; i++ {
		if _, err := s.Append(tb.Context(), &store.Append{
			Tenant: "acme", ConversationID: id, Messages: text(fmt.Sprint(i, strings.Repeat(" word", 10))),
		}); err != nil {
			tb.Fatal(err)
		}
	}
}

// readNumbers returns the numbers of the newest n messages that appendNumbers appended.
func readNumbers(tb testing.TB, s *Store, r store.Read) (numbers []string, err error) {
	tb.Helper()
	r.Tenant = "acme"
	snapshot, err := s.Read(tb.Context(), &r)
	if err != nil {
		return nil, err
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		tb.Fatal(err)
	}
	for _, m := range messages {
		number, _, _ := strings.Cut(m.GetContent(), " ")
		numbers = append(numbers, number)
	}
	return numbers, nil
}

// wantNumbers checks all reads of the newest messages of a conversation that has the messages from and to.
func wantNumbers(t *testing.T, s *Store, id string, from, to int) {
	t.Helper()
	var want []string
	for i := from; i <= to; i++ {
		want = append(want, fmt.Sprint(i))
	}
	for n := -1; n <= len(want)+1; n++ {
		newest := want
		if n >= 0 {
			newest = want[max(0, len(want)-n):]
		}
		for _, shared := range []bool{false, true} {
			got, err := readNumbers(t, s, store.Read{ConversationID: id, Newest: n, Shared: shared})
			if err != nil || !slices.Equal(got, newest) {
				t.Fatalf("newest %d, shared %t = %v, %v, want %v", n, shared, got, err, newest)
			}
		}
	}
}

// TestChunks divides a conversation, reads it, drops its oldest messages, and deletes it, with a journal and without.
func TestChunks(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		t.Run(fmt.Sprint("journal ", budget), func(t *testing.T) {
			s := openDivided(t, newPath(t), store.Options{MaxMessages: 30}, budget, 300)
			fold := func() {
				if s.folder != nil {
					s.folder.fold()
				}
			}
			appendNumbers(t, s, "a", 1, 14)
			fold() // With a journal, this divides it.
			wantConsistent(t, s)
			appendNumbers(t, s, "a", 15, 25)
			appendNumbers(t, s, "b", 1, 2)
			wantNumbers(t, s, "a", 1, 25)
			wantCached(t, s, "a")
			fold()
			wantNumbers(t, s, "a", 1, 25)
			if n := len(chunkKeys(t, s)); n < 4 {
				t.Errorf("%d chunks, want 4 at least", n)
			}
			appendNumbers(t, s, "a", 26, 47)
			wantNumbers(t, s, "a", 18, 47)
			wantConsistent(t, s)
			fold()
			wantNumbers(t, s, "a", 18, 47)
			wantConsistent(t, s)
			u := &store.Update{Tenant: "acme", ConversationID: "a", Sequences: []int32{30}}
			if _, err := s.Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			u.Sequences, u.KeepThrough = nil, new(int32(29))
			if _, err := s.Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			wantNumbers(t, s, "a", 18, 29)
			wantConsistent(t, s)
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
				t.Fatal(err)
			}
			if keys := chunkKeys(t, s); len(keys) > 0 {
				t.Errorf("chunks after the delete = %x, want none", keys)
			}
			wantNumbers(t, s, "b", 1, 2)
			wantConsistent(t, s)
		})
	}
}

// wantCached checks that the cache of a store with a journal answers reads of the newest message of a conversation, also
// after an append.
func wantCached(t *testing.T, s *Store, id string) {
	t.Helper()
	if s.folder == nil {
		return
	}
	hits := s.State().Cache.Hits
	for range 2 {
		if _, err := readNumbers(t, s, store.Read{ConversationID: id, Newest: 1, Shared: true}); err != nil {
			t.Fatal(err)
		}
		u := &store.Append{Tenant: "acme", ConversationID: id, Begin: &parleyv1.Turn{Id: fmt.Sprint("turn ", hits)}}
		if _, err := s.Append(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		u.Begin, u.End = nil, u.Begin
		if _, err := s.Append(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.State().Cache.Hits; got != hits+2 {
		t.Errorf("%d of 2 reads were answered by the cache", got-hits)
	}
}

// TestChunksOnlyWhenNeeded checks that the file has no chunks and its old schema while conversations are small, and that a
// conversation of the earlier layout gets chunks with its next write.
func TestChunksOnlyWhenNeeded(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		path := newPath(t)
		s := openDivided(t, path, store.Options{MaxMessages: 100}, budget, 1<<20)
		appendNumbers(t, s, "a", 1, 40)
		before := schemaOf(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openDivided(t, path, store.Options{MaxMessages: 100}, budget, 100)
		appendNumbers(t, s, "b", 1, 1)
		if got := schemaOf(t, s); len(chunkKeys(t, s)) > 0 || !slices.Equal(got, before) {
			t.Errorf("schema without chunks = %x, want %x", got, before)
		}
		appendNumbers(t, s, "a", 41, 41)
		next := slices.Clone(before)
		next[3] += 2
		if got := schemaOf(t, s); len(chunkKeys(t, s)) == 0 || !slices.Equal(got, next) {
			t.Errorf("schema with chunks = %x, want %x", got, next)
		}
		wantNumbers(t, s, "a", 1, 41)
		wantConsistent(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path, store.Options{})
		if got, want := schemaOf(t, s), boltfile.EncodeSchema(boltfile.SchemaVersion+2); !slices.Equal(got, want) {
			t.Errorf("schema after Close = %x, want %x", got, want)
		}
		wantNumbers(t, s, "a", 1, 41)
	}
}

// TestWorkOfDivided compares what an append and a read write and read in a conversation with 3 MB of messages and in one
// with a thirtieth of that.
func TestWorkOfDivided(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{MaxMessages: 1000, MaxConversationBytes: 4 << 20}, 64<<20)
	large := text(strings.Repeat("x", 3000))
	for id, n := range map[string]int{"small": 33, "large": 1000} {
		history := store.Frames{}
		for i := range n {
			m := &parleyv1.Message{Id: fmt.Sprint(i), Content: large[0].GetContent(), Sequence: int32(i + 1)}
			frame, err := store.EncodeFrame(m)
			if err != nil {
				t.Fatal(err)
			}
			history = append(history, frame...)
		}
		if _, err := s.Create(t.Context(), &store.Create{
			Tenant: "acme", Conversation: &parleyv1.Conversation{Id: id}, Messages: history,
		}); err != nil {
			t.Fatal(err)
		}
	}
	sizes, values := map[string]int{}, map[string]int{}
	for _, id := range []string{"small", "large"} {
		appendTo(t, s, id, "hello")
		err := s.readOnce(t.Context(), func(_ *bolt.Tx, r *reader) error {
			f, err := r.find("acme", id, head)
			if err == nil {
				sizes[id] = len(f.pending.Head) + f.pending.Sizes.Memory()
				values[id] = len(r.value("acme", f.place.Key))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, n := range map[string]map[string]int{"bytes in memory": sizes, "bytes that a fold writes": values} {
		if n["large"] > 2*n["small"] || n["small"] == 0 {
			t.Errorf("%s = %v, want no more than twice as many for the large one", what, n)
		}
	}
	allocated := func(id string) float64 {
		return testing.AllocsPerRun(20, func() { appendTo(t, s, id, "hello") })
	}
	if small, large := allocated("small"), allocated("large"); large > 2*small {
		t.Errorf("an append to the large one makes %v allocations, to the small one %v", large, small)
	}
	if values["large"] > 2*defaultChunkSize+10_000 {
		t.Errorf("value of the large one has %d bytes", values["large"])
	}
	wantConsistent(t, s)
}

// TestDamagedChunk damages the chunk with the oldest messages of a conversation.
func TestDamagedChunk(t *testing.T) {
	for name, damaged := range map[string]struct {
		change func([]byte) []byte
		head   bool
	}{"head": {flip(3), true}, "messages": {flip(-1), false}, "empty": {func([]byte) []byte { return nil }, true}} {
		t.Run(name, func(t *testing.T) {
			s := openDivided(t, newPath(t), store.Options{MaxMessages: 20}, 1<<20, 300)
			appendNumbers(t, s, "other", 1, 20)
			appendNumbers(t, s, "bad", 1, 20)
			s.folder.fold()
			damage(t, s, layout.ChunksBucket, func(tx *bolt.Tx) []byte {
				key := badKey(tx)
				k, _ := tx.Bucket([]byte(layout.ChunksBucket)).Cursor().Seek(key)
				return slices.Clone(k)
			}, damaged.change)
			if got, err := readNumbers(t, s, store.Read{ConversationID: "bad", Newest: 10}); err != nil || len(got) != 10 {
				t.Errorf("newest 10 = %v, %v", got, err)
			}
			through := int32(1)
			_, errRead := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "bad", Newest: -1})
			_, errClear := s.Update(t.Context(), &store.Update{Tenant: "acme", ConversationID: "bad", KeepThrough: &through})
			_, errReplace := s.Append(t.Context(), &store.Append{
				Tenant: "acme", ConversationID: "bad", ReplaceAfter: &through, Messages: text("hello"),
			})
			for i, err := range []error{errRead, errClear, errReplace} {
				if !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("call %d = %v, want ErrCorrupt", i, err)
				}
			}
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "bad", Messages: text("drops the oldest")})
			if errors.Is(err, store.ErrCorrupt) != damaged.head {
				t.Errorf("append that drops a message in the chunk = %v", err)
			}
			if _, err := s.Update(t.Context(), &store.Update{
				Tenant: "acme", ConversationID: "bad", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "t"},
			}); err != nil {
				t.Error(err)
			}
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
				t.Fatal(err)
			}
			wantNumbers(t, s, "other", 1, 20)
			wantConsistent(t, s)
		})
	}
}

// TestDamagedDivided deletes a conversation with chunks whose header is damaged. The counts of the tenant then include
// its messages until the tenant has no conversation left.
func TestDamagedDivided(t *testing.T) {
	s := openDivided(t, newPath(t), store.Options{MaxMessages: 100}, 0, 100)
	appendNumbers(t, s, "bad", 1, 20)
	appendNumbers(t, s, "other", 1, 20)
	damage(t, s, layout.ConversationsBucket, badKey, flip(20))
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantSound(t, s.path)
	s = openDivided(t, s.path, store.Options{}, 0, 100)
	wantNumbers(t, s, "other", 1, 20)
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "other"}); err != nil {
		t.Fatal(err)
	}
	wantConsistent(t, s)
}

// TestCheckChunks breaks each rule about chunks once.
func TestCheckChunks(t *testing.T) {
	chunk := func(change func(b *bolt.Bucket, k, v []byte) error) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(layout.ChunksBucket))
			k, v := b.Cursor().First()
			return change(b, slices.Clone(k), slices.Clone(v))
		}
	}
	again := func(change func(c *record.Chunk, k []byte)) func(*bolt.Tx) error {
		return chunk(func(b *bolt.Bucket, k, v []byte) error {
			c, err := record.UnmarshalChunk(k, v)
			if err != nil {
				return err
			}
			change(c, k)
			return b.Put(k, c.Marshal(k))
		})
	}
	for name, test := range map[string]struct {
		write func(*bolt.Tx) error
		want  string
	}{
		"damaged": {chunk(func(b *bolt.Bucket, k, v []byte) error {
			v[len(v)-1] ^= 1
			return b.Put(k, v)
		}), `conversation "a" of tenant "acme": record is corrupt: messages from 1 on`},
		"missing": {
			chunk(func(b *bolt.Bucket, k, _ []byte) error { return b.Delete(k) }),
			`conversation "a" of tenant "acme": its chunks retain`,
		},
		"moved": {chunk(func(b *bolt.Bucket, k, v []byte) error {
			k[len(k)-1] = 99
			return b.Put(k, v)
		}), `conversation "a" of tenant "acme": record is corrupt: head of a chunk`},
		"overlapping": {
			again(func(_ *record.Chunk, k []byte) { k[len(k)-1] = 99 }),
			`conversation "a" of tenant "acme": message 1 in chunk 1 follows message`,
		},
		"sizes": {
			again(func(c *record.Chunk, _ []byte) { c.Sizes[0].Body-- }),
			`conversation "a" of tenant "acme": the messages of chunk 1 have other sizes than its head says`,
		},
		"types": {
			again(func(c *record.Chunk, _ []byte) { c.Data = nil }),
			`conversation "a" of tenant "acme": its chunks have other types of structured data than its header says`,
		},
		"without conversation": {
			again(func(_ *record.Chunk, k []byte) { k[len(k)-layout.SequenceSize-1] ^= 1 }),
			`of tenant "acme" leads to no conversation`,
		},
		"key": {chunk(func(b *bolt.Bucket, k, v []byte) error {
			return b.Put(append(k, 0), v)
		}), `is not the key of a chunk`},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			s := openDivided(t, path, store.Options{MaxMessages: 100}, 0, 100)
			m := text("data")
			m[0].StructuredData = []*parleyv1.StructuredData{{Type: "list"}}
			if _, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "a", Messages: m}); err != nil {
				t.Fatal(err)
			}
			appendNumbers(t, s, "a", 1, 20)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := Check(path, func(fault string) { t.Error(fault) }); err != nil {
				t.Fatal(err)
			}
			updateFile(t, path, test.write)
			var faults []string
			_, err := Check(path, func(fault string) { faults = append(faults, fault) })
			if !errors.Is(err, ErrDamaged) || !strings.Contains(strings.Join(faults, "\n"), test.want) {
				t.Errorf("Check = %v, faults %q, want %q", err, faults, test.want)
			}
		})
	}
}

// TestDividedCopies backs up, compacts and restores a divided conversation with operations in the journal.
func TestDividedCopies(t *testing.T) {
	s := openDivided(t, newPath(t), store.Options{MaxMessages: 30}, 1<<20, 200)
	appendNumbers(t, s, "a", 1, 30)
	s.folder.fold()
	appendNumbers(t, s, "a", 31, 50) // Drops messages in chunks.
	backup := writeBackup(t, s)
	if done := wantSound(t, backup); done.Messages != 30 {
		t.Errorf("Check(backup) = %+v, want 30 messages", done)
	}
	kill(t, s)
	restored := filepath.Join(t.TempDir(), "parley.db")
	if _, err := Restore(t.Context(), s.path, restored, RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Compact(restored, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{backup, restored, s.path} {
		wantSound(t, path)
		copied := open(t, path, store.Options{})
		wantNumbers(t, copied, "a", 21, 50)
		wantConsistent(t, copied)
	}
}

// TestReadWhileDivided reads a conversation while appends, folds and removals change its chunks.
func TestReadWhileDivided(t *testing.T) {
	s := openDivided(t, newPath(t), store.Options{MaxMessages: 40}, 4<<10, 200)
	appendNumbers(t, s, "a", 1, 1)
	var group sync.WaitGroup
	stop := make(chan struct{})
	for reader := range 3 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := store.Read{Tenant: "acme", ConversationID: "a", Newest: 10*reader - 1, Shared: reader > 0}
				snapshot, err := s.Read(t.Context(), &r)
				if err != nil {
					t.Error(err)
					return
				}
				c, sequences := snapshot.Conversation, []int32{}
				for frame := range snapshot.Messages.All() {
					sequences = append(sequences, frame.Sequence())
				}
				want := int(c.GetMessageCount())
				if r.Newest >= 0 {
					want = min(want, r.Newest)
				}
				if len(sequences) != want || !slices.IsSorted(sequences) || sequences[len(sequences)-1] != c.GetLastSequence() {
					t.Errorf("newest %d = messages %v of %d up to %d", r.Newest, sequences, c.GetMessageCount(), c.GetLastSequence())
					return
				}
			}
		})
	}
	for i := 2; i < 400; i++ {
		appendNumbers(t, s, "a", i, i)
		if i%97 == 0 {
			a := &store.Append{Tenant: "acme", ConversationID: "a", ReplaceAfter: new(int32(i - 20)), Messages: text(fmt.Sprint(i))}
			if _, err := s.Append(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	group.Wait()
	wantConsistent(t, s)
}
