package boltstore

import (
	"path/filepath"
	"testing"

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
