package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestFoldContinued continues a fold that has not ended, in a transaction that also changes a conversation twice. The
// second change must see the first.
func TestFoldContinued(t *testing.T) {
	blocked, release := make(chan struct{}), make(chan struct{})
	s := openJournaled(t, newPath(t), store.Options{Observe: func(changes []store.Change) {
		if changes[0].ConversationID == "blocks" {
			close(blocked)
			<-release
		}
	}}, 1<<20)
	begin := func(tx *txn) error {
		tx.tally.pending.Begin(tx.tally.journalEntry.Through)
		return nil
	}
	appendTo(t, s, "one", "creates it")
	appendTo(t, s, "two", "creates it")
	appendTo(t, s, "two", "to fold")
	if err := s.folder.do(begin); err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, "one", "after that")

	var running sync.WaitGroup
	queue := func(n int, write func() error) {
		running.Go(func() {
			if err := write(); err != nil {
				t.Error(err)
			}
		})
		for s.State().QueuedWrites < n {
			<-time.After(time.Millisecond)
		}
	}
	running.Go(func() { appendTo(t, s, "blocks", "creates it") })
	<-blocked
	queue(1, func() error { return s.folder.do(begin) })
	for i, u := range []store.Update{
		{Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"}},
		{Fields: []string{"labels"}, Values: &parleyv1.Conversation{Labels: map[string]string{"key": "value"}}},
	} {
		u.Tenant, u.ConversationID = "acme", "one"
		queue(i+2, func() error {
			_, err := s.Update(t.Context(), &u)
			return err
		})
	}
	close(release)
	running.Wait()
	s.folder.fold()
	wantConsistent(t, s)
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "one", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	c := snapshot.Conversation
	if got := fmt.Sprintf("%q %v %d", c.GetTitle(), c.GetLabels(), c.GetMessageCount()); got != `"title" map[key:value] 2` {
		t.Errorf("the conversation has %s", got)
	}
}

// TestFoldUnreadable folds while the journal cannot read an operation. The messages of its conversation must not
// disappear: the conversation stays unreadable until it is deleted.
func TestFoldUnreadable(t *testing.T) {
	path := newPath(t)
	s, err := Open(path, Options{JournalBudget: 1 << 20, segmentBytes: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, id := range []string{"one", "two"} {
		appendTo(t, s, id, "creates it")
		appendTo(t, s, id, "is damaged in "+id)
	}
	damageSegment(t, path, "is damaged in one")
	for range 2 {
		s.folder.fold()
		if _, err := s.Read(t.Context(), &store.Read{
			Tenant: "acme", ConversationID: "one", Newest: -1,
		}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Read after a fold = %v, want %v", err, store.ErrCorrupt)
		}
		if entries, err := s.tally.pending.Freeze(math.MaxInt); err != nil || len(entries) != 1 {
			t.Errorf("%d entries after a fold, %v, want that of the unreadable conversation", len(entries), err)
		}
	}
	if b, err := s.Backup(t.Context()); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Backup = %v, %v, want %v", b, err, store.ErrCorrupt)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "one"}); err != nil {
		t.Fatal(err)
	}
	s.folder.fold()
	if current, folding := s.tally.pending.Bytes(); current+folding != 0 {
		t.Errorf("%d bytes wait after the delete", current+folding)
	}
	wantConsistent(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantSound(t, path)
}

// TestFoldNotApplied changes the version of a conversation in the file of a killed process, so that its operation in the
// journal does not match. The operation must stay until the conversation is deleted.
func TestFoldNotApplied(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	appendTo(t, s, "one", "creates it")
	appendTo(t, s, "one", "is in the journal")
	kill(t, s)
	updateFile(t, path, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(layout.ConversationsBucket))
		key, value := b.Cursor().First()
		r, err := record.Unmarshal(value)
		if err != nil {
			return err
		}
		r.Conversation().Version++
		changed, err := r.Marshal()
		return errors.Join(err, b.Put(bytes.Clone(key), changed))
	})
	for range 2 {
		s = openJournaled(t, path, store.Options{}, 1<<20)
		s.folder.fold()
		if _, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "one"}); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Read after a fold = %v, want %v", err, store.ErrCorrupt)
		}
		if err := s.Close(); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Close = %v, want %v", err, store.ErrCorrupt)
		}
	}
	s = openJournaled(t, path, store.Options{}, 1<<20)
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantSound(t, path)
}

// TestReplayedOperations appends to a conversation whose head has no space in memory. So that an append does not read more
// and more operations, the conversation is folded from time to time.
func TestReplayedOperations(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 1<<30)
	const other, size = "another conversation", 32 << 20
	s.writer.working.Lock()
	s.tally.pending.Put(other, overlay.Entry{Head: make([]byte, size)}, 0)
	s.writer.working.Unlock()
	for i := range 2*maxReplayed + 10 {
		appendTo(t, s, "one", fmt.Sprint(i))
	}
	s.writer.working.Lock()
	s.tally.pending.Fold(other, 1) // It is not in the file.
	s.writer.working.Unlock()
	entries, err := s.tally.pending.Freeze(math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n := len(e.Operations); n > maxReplayed {
			t.Errorf("the conversation has %d operations that the file does not contain, want %d at most", n, maxReplayed)
		}
	}
	wantConsistent(t, s)
}
