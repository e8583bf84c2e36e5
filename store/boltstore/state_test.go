package boltstore

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestCommitsAreReported checks the reports of commits and the state of the store before and after.
func TestCommitsAreReported(t *testing.T) {
	var commits []store.Commit
	s, err := Open(filepath.Join(t.TempDir(), "parley.db"), Options{
		OnCommit: func(c store.Commit) { commits = append(commits, c) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	message := &parleyv1.Message{Id: "m", Role: parleyv1.Role_ROLE_USER, Content: "hello"}
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "a", ConversationID: "c", Messages: []*parleyv1.Message{message},
	}); err != nil {
		t.Fatal(err)
	}
	// Nothing changes, so nothing is committed.
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "a", ConversationID: "none"}); err == nil {
		t.Error("Delete of a conversation that does not exist = nil, want an error")
	}
	if len(commits) != 1 || commits[0].Operations != 1 || commits[0].Seconds <= 0 || commits[0].WaitSeconds < 0 {
		t.Errorf("commits = %+v, want one with one operation", commits)
	}
	state := s.State()
	if state.QueuedWrites != 0 || state.QueuedBytes != 0 || state.Failed || state.FreePages <= 0 ||
		state.DiskFreeBytes > state.DiskBytes {
		t.Errorf("State() = %+v, want an empty queue and free pages", state)
	}
	s.fail(store.ErrFailed)
	if !s.State().Failed {
		t.Error("State().Failed = false after a failure, want true")
	}
}

// TestJournalIsReported checks the reports of commits in the journal, and the state of the journal and of the cache before
// and after a fold, and while the journal cannot grow.
func TestJournalIsReported(t *testing.T) {
	var commits []bool // whether they were in the journal
	path, budget, cacheBytes := newPath(t), int64(1<<20), 20<<10
	s, err := Open(path, Options{
		JournalBudget: budget, segmentBytes: 16 << 10, CacheBytes: cacheBytes,
		OnCommit: func(c store.Commit) { commits = append(commits, c.Journal) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	appendTo(t, s, "a", "creates the conversation")
	if j := s.State().Journal; j.BudgetBytes != budget || j.WaitingBytes != 0 || j.Age != 0 {
		t.Errorf("journal = %+v, want the budget and no operations", j)
	}
	appendTo(t, s, "a", "hello")
	if j := s.State().Journal; j.WaitingBytes == 0 || j.FoldingBytes != 0 || j.Age <= 0 || j.FileBytes < 16<<10 {
		t.Errorf("journal = %+v, want an operation that waits, and a file", j)
	}
	for range 3 {
		if _, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "a", Newest: -1, Shared: true}); err != nil {
			t.Fatal(err)
		}
	}
	if c := s.State().Cache; c.LimitBytes != int64(cacheBytes) || c.Bytes <= 0 || c.Bytes > c.LimitBytes || c.Hits != 2 ||
		c.Misses != 1 {
		t.Errorf("cache = %+v, want its limit, a conversation, two hits and a miss", c)
	}
	for range 2 { // There is nothing for the second fold.
		s.folder.fold()
		if j := s.State().Journal; j.WaitingBytes != 0 || j.FoldingBytes != 0 || j.Age != 0 || j.Folds != 1 ||
			j.FoldedConversations != 1 || j.FoldTime <= 0 {
			t.Errorf("journal after the fold = %+v, want no operations, one fold and one conversation", j)
		}
	}
	dir := journalOf(t, path)
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	for n := 0; s.State().Journal.BypassedDisk == 0; n++ {
		if n > 100 {
			t.Fatal("no append bypassed a journal whose directory is missing")
		}
		appendTo(t, s, "a", strings.Repeat("word ", 500))
	}
	if err := os.Rename(dir+".moved", dir); err != nil {
		t.Fatal(err)
	}
	if commits[0] || !commits[1] || commits[len(commits)-1] {
		t.Errorf("commits in the journal = %v, want false for the first and the last, true for the second", commits)
	}
	if j := s.State().Journal; j.BypassedDisk != 1 || j.BypassedFull != 0 {
		t.Errorf("journal = %+v, want one operation that bypassed it because of the disk", j)
	}
}

// TestFullJournalIsReported checks that an append to a journal at twice its budget is counted.
func TestFullJournalIsReported(t *testing.T) {
	path := newPath(t)
	synctest.Test(t, func(t *testing.T) {
		committed := make(chan struct{})
		observe := func(changes []store.Change) {
			if len(changes[0].Message) > 1000 {
				<-committed // Until then the writer cannot fold.
			}
		}
		s := openJournaled(t, path, store.Options{Observe: observe}, 4<<10)
		appendTo(t, s, "a", "creates the conversation")
		var appends sync.WaitGroup
		for _, content := range []string{strings.Repeat("word ", 2000), "while the journal is full"} {
			appends.Go(func() { appendTo(t, s, "a", content) })
			synctest.Wait()
		}
		close(committed)
		appends.Wait()
		if j := s.State().Journal; j.BypassedFull != 1 || j.BypassedDisk != 0 {
			t.Errorf("journal = %+v, want one operation that bypassed it because it was full", j)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
