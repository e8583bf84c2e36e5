package boltstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// historyOf returns n messages with sequences from 1 on.
func historyOf(tb testing.TB, n int) (history store.Frames) {
	tb.Helper()
	for i := range n {
		frame, err := store.EncodeFrame(&parleyv1.Message{
			Id: fmt.Sprint(i), Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprint(i), Sequence: int32(i + 1),
		})
		if err != nil {
			tb.Fatal(err)
		}
		history = append(history, frame...)
	}
	return history
}

// createLong creates a conversation of tenant "acme" that keeps n messages.
func createLong(tb testing.TB, s *Store, id string, n int) {
	tb.Helper()
	if _, err := s.Create(tb.Context(), &store.Create{
		Tenant: "acme", Messages: historyOf(tb, n),
		Conversation: &parleyv1.Conversation{Id: id, Retention: &parleyv1.Retention{KeepAll: true}},
	}); err != nil {
		tb.Fatal(err)
	}
}

// countIn returns the number of entries in buckets of a store's file.
func countIn(t *testing.T, s *Store, buckets ...string) (n int) {
	t.Helper()
	if err := s.db.View(func(tx *bolt.Tx) error {
		for _, b := range buckets {
			n += countEntries(tx, b)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestManyChunks removes conversations whose chunks and records are too many for one transaction. They are not found
// from then on, a new conversation with the same id does not have them, and each step of Sweep removes a bounded number.
func TestManyChunks(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		t.Run(fmt.Sprint("journal ", budget), func(t *testing.T) {
			s := openDivided(t, newPath(t), store.Options{}, budget, 1)
			const messages = 2*maxRemoved + 500
			ids := []string{"a", "b"}
			for _, id := range ids {
				createLong(t, s, id, messages)
				write(t, s, id, putOf("k", 1))
			}
			before := countIn(t, s, layout.ChunksBucket)
			if before < len(ids)*(messages-9) {
				t.Fatalf("%d chunks of %d messages", before, messages)
			}
			for _, id := range ids {
				if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
					t.Fatal(err)
				}
				left := countIn(t, s, layout.ChunksBucket)
				if before-left > maxRemoved {
					t.Errorf("Delete removed %d chunks, want %d at most", before-left, maxRemoved)
				}
				before = left
			}
			if stats, err := s.Stats(t.Context()); err != nil || stats.Messages != 0 || stats.Bytes != 0 {
				t.Errorf("Stats() = %+v, %v, want no messages", stats, err)
			}
			if n := countIn(t, s, layout.OrphansBucket); n != len(ids) {
				t.Errorf("%d orphans, want %d", n, len(ids))
			}
			wantConsistent(t, s)
			appendNumbers(t, s, "a", 1, 30)
			if s.folder != nil {
				s.folder.fold()
			}
			wantNumbers(t, s, "a", 11, 30)
			if got := recordKeys(t, s, "a"); got != "" {
				t.Errorf("records of a new conversation with the same id = %s", got)
			}
			own := countIn(t, s, layout.ChunksBucket) - before
			for more := true; more; {
				left := countIn(t, s, layout.ChunksBucket)
				var err error
				if more, err = s.Sweep(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				if n := left - countIn(t, s, layout.ChunksBucket); n > maxRemoved {
					t.Errorf("a step of Sweep removed %d chunks, want %d at most", n, maxRemoved)
				}
				wantConsistent(t, s)
			}
			if n := countIn(t, s, layout.ChunksBucket); n != own {
				t.Errorf("%d chunks are left after Sweep, want the %d of the new conversation", n, own)
			}
			wantNumbers(t, s, "a", 11, 30)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			wantSound(t, s.path)
		})
	}
}

// TestLargeChunks removes conversations whose chunks have too many bytes for one transaction, with one call of Sweep
// after they have expired.
func TestLargeChunks(t *testing.T) {
	clock := newClock()
	s := openDivided(t, newPath(t), store.Options{Now: clock.Now, MaxConversationBytes: 16 << 20}, 0, 1)
	large := text("large")
	large[0].Content = string(make([]byte, maxRemovedBytes/2))
	for c := range 3 {
		for range 3 {
			if _, err := s.Append(t.Context(), &store.Append{
				Tenant: "acme", ConversationID: fmt.Sprint(c), Messages: large,
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := countIn(t, s, layout.ChunksBucket)
	clock.advance(2 * time.Hour)
	if _, err := s.Sweep(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if n := before - countIn(t, s, layout.ChunksBucket); n != 2 {
		t.Errorf("a step removed %d chunks of %d bytes, want 2", n, maxRemovedBytes/2)
	}
	wantConsistent(t, s)
	sweep(t, s)
	if n := countIn(t, s, layout.ChunksBucket, layout.OrphansBucket); n != 0 {
		t.Errorf("%d chunks and orphans are left, want none", n)
	}
}

// TestSweepManyOrphans checks that one step of Sweep removes the records of several conversations.
func TestSweepManyOrphans(t *testing.T) {
	clock := newClock()
	var commits atomic.Int64
	s, err := Open(newPath(t), Options{
		Options: store.Options{Now: clock.Now}, OnCommit: func(store.Commit) { commits.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.db.NoSync = true
	t.Cleanup(func() { s.Close() })
	const conversations, each = 400, 10
	var writes []*parleyv1.RecordWrite
	for i := range each {
		writes = append(writes, putOf(fmt.Sprint(i), 1))
	}
	for c := range conversations {
		appendTo(t, s, fmt.Sprint(c), "hello")
		write(t, s, fmt.Sprint(c), writes...)
	}
	clock.advance(2 * time.Hour)
	commits.Store(0)
	if more, err := s.Sweep(t.Context(), 1000); more || err != nil {
		t.Errorf("Sweep() = %v, %v, want no more", more, err)
	}
	if n := countIn(t, s, layout.RecordsBucket, layout.OrphansBucket); n != 0 {
		t.Errorf("%d records and orphans are left, want none", n)
	}
	// Two steps remove the conversations, with 1000 records each.
	if got, want := commits.Load(), int64(2+conversations*each/maxRemoved); got > want {
		t.Errorf("Sweep made %d commits, want %d at most", got, want)
	}
	wantConsistent(t, s)
}
