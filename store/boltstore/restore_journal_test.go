package boltstore

import (
	"fmt"
	"os"
	"testing"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// copyOf copies a file to a path, over an existing one.
func copyOf(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, boltfile.FileMode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newest returns the content of the newest message of a conversation.
func newest(t *testing.T, s *Store, id string) string {
	t.Helper()
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: 1})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v, want 1", len(messages), err)
	}
	return messages[0].GetContent()
}

// TestJournalOfBackup checks that appends to a restored backup are not taken for those that it contains.
func TestJournalOfBackup(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 1<<20)
	for i := range 10 {
		appendTo(t, s, "a", fmt.Sprint(i))
	}
	s.folder.fold()
	appendTo(t, s, "a", "in the journal")
	path := newPath(t)
	copyOf(t, writeBackup(t, s), path)
	for i := range 3 {
		restored := openJournaled(t, path, store.Options{}, 1<<20)
		appendTo(t, restored, "a", fmt.Sprint("new ", i))
		kill(t, restored)
		restored = openJournaled(t, path, store.Options{}, 1<<20)
		if got, want := newest(t, restored, "a"), fmt.Sprint("new ", i); got != want {
			t.Errorf("newest message = %q, want %q", got, want)
		}
		restored.Close()
	}
}
