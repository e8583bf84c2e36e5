package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestJournalOfOlderFile replaces the file of a stopped or killed process by an older copy, which was complete. The copy
// must not use the journal, and the journal must stay for the file that needs it.
func TestJournalOfOlderFile(t *testing.T) {
	path := newPath(t)
	older, newer := filepath.Join(t.TempDir(), "older"), filepath.Join(t.TempDir(), "newer")
	use := func(want, content string, end func(s *Store)) {
		t.Helper()
		s := openJournaled(t, path, store.Options{}, 1<<20)
		if want != "" {
			if got := newest(t, s, "c"); got != want {
				t.Fatalf("newest message = %q, want %q", got, want)
			}
		}
		appendTo(t, s, "c", content)
		appendTo(t, s, "c", content+" again") // Conversation "c" exists, so this one is in the journal.
		end(s)
	}
	journals := func(want ...string) {
		t.Helper()
		if got, err := boltfile.JournalSuffixes(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("journals = %v, %v, want %v", got, err, want)
		}
	}
	stop := func(s *Store) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	use("", "first", stop)
	journals()
	copyOf(t, path, older)
	use("first again", "second", stop)
	copyOf(t, older, path)
	use("first again", "third", func(s *Store) { kill(t, s) })
	ofNewer := strings.TrimPrefix(journalOf(t, path), path)

	copyOf(t, path, newer)
	copyOf(t, older, path)
	use("first again", "fourth", func(s *Store) { kill(t, s) })
	use("fourth again", "fifth", stop)
	journals(ofNewer)
	copyOf(t, newer, path)
	use("third again", "sixth", stop)
	journals()

	// Two copies of one file never have journals with the same name.
	copyOf(t, older, path)
	use("first again", "seventh", func(s *Store) { kill(t, s) })
	here := path
	path = newPath(t)
	copyOf(t, older, path)
	use("first again", "eighth", func(s *Store) { kill(t, s) })
	copyOf(t, path, here)
	if s, err := Open(here, Options{}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("Open = %v, %v, want ErrDamaged, since the journal is that of the other copy", s, err)
	}
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
