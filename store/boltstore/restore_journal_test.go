package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// names returns the names of all entries of a directory.
func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

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

// TestRestoreKilled restores the files of a killed process. Without all of its journal, nothing changes.
func TestRestoreKilled(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, source string)
		want   string // in the error; empty if there is none
	}{
		"complete": {func(*testing.T, string) {}, ""},
		"without its journal": {func(t *testing.T, source string) {
			t.Helper()
			if err := os.RemoveAll(journalOf(t, source)); err != nil {
				t.Fatal(err)
			}
		}, "is missing: copy or move both together"},
		"with damage in its journal": {func(t *testing.T, source string) {
			t.Helper()
			damageSegment(t, source, "message 5")
		}, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			source, path := killedStore(t), newPath(t)
			test.change(t, source)
			before, files := fileContent(t, source), names(t, filepath.Dir(source))
			done, err := Restore(t.Context(), source, path, RestoreOptions{Check: checkSound})
			if !bytes.Equal(fileContent(t, source), before) || !slices.Equal(names(t, filepath.Dir(source)), files) {
				t.Error("the source has changed")
			}
			if test.want != "" {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("Restore = %v, want ErrDamaged with %q in one line", err, test.want)
				}
				if got := names(t, filepath.Dir(path)); len(got) != 0 {
					t.Errorf("files = %v, want none", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := names(t, filepath.Dir(path)); !slices.Equal(got, []string{"parley.db"}) {
				t.Errorf("files = %v, want only the store", got)
			}
			if info, err := os.Stat(path); err != nil || info.Size() != done.Bytes {
				t.Errorf("restored file = %v, %v, want %d bytes", info, err, done.Bytes)
			}
			wantMessages(t, open(t, path, store.Options{})) // Without a journal, as an earlier version opens it.
		})
	}
}

// TestRestoreOverKilled moves the store of a killed process aside, also after crashes at the two instants at which files
// are not where they were or will be.
func TestRestoreOverKilled(t *testing.T) {
	backup := newBackup(t)
	force := RestoreOptions{Check: checkSound, Force: true, Now: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)}
	for name, crash := range map[string]func(t *testing.T, path, aside, journal string) error{
		"no crash": nil,
		"no crash, but an earlier journal has the name": func(t *testing.T, _, aside, journal string) error {
			t.Helper()
			return os.Mkdir(aside+journal, boltfile.DirMode)
		},
		"before the copy is in place": func(t *testing.T, path, aside, journal string) error {
			t.Helper()
			copyOf(t, backup, path+boltfile.UnfinishedSuffix)
			return errors.Join(os.Link(path, aside), os.CopyFS(aside+journal, os.DirFS(path+journal)))
		},
		"after the copy is in place": func(t *testing.T, path, aside, journal string) error {
			t.Helper()
			_, err := Restore(t.Context(), backup, path, force)
			return errors.Join(err, os.CopyFS(path+journal, os.DirFS(aside+journal)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := killedStore(t)
			journal := strings.TrimPrefix(journalOf(t, path), path)
			aside := path + ".before-20260203T040506Z"
			if crash != nil {
				if err := crash(t, path, aside, journal); err != nil {
					t.Fatal(err)
				}
				s := openJournaled(t, path, store.Options{}, 1<<20)
				if name != "after the copy is in place" {
					wantMessages(t, s)
				} else if got := newest(t, s, "kept"); got != "hello" {
					t.Errorf("restored message %q", got)
				}
				kill(t, s)
			}
			done, err := Restore(t.Context(), backup, path, force)
			if err != nil || len(done.AsideJournals) == 0 || !strings.HasPrefix(done.AsideJournals[0], done.Aside) {
				t.Fatalf("Restore = %+v, %v, want a journal beside the old file", done, err)
			}
			wantSound(t, done.Aside)
			if name == "after the copy is in place" { // The second call moved the restored store.
				if got := newest(t, openJournaled(t, done.Aside, store.Options{}, 1<<20), "kept"); got != "hello" {
					t.Errorf("message %q in the store moved aside", got)
				}
				done.Aside = aside
			}
			wantMessages(t, openJournaled(t, done.Aside, store.Options{}, 1<<20))
			if left, err := boltfile.JournalSuffixes(path); err != nil || len(left) != 0 {
				t.Errorf("journals %v, %v, want none", left, err)
			}
			if got := newest(t, openJournaled(t, path, store.Options{}, 1<<20), "kept"); got != "hello" {
				t.Errorf("restored message %q", got)
			}
		})
	}
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
