package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// writeBackup writes a backup of s to a file and returns its path.
func writeBackup(t *testing.T, s *Store) string {
	t.Helper()
	b, err := s.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path := newPath(t)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, boltfile.FileMode)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, b)
	if err := errors.Join(err, b.Close(), f.Close()); err != nil || n != b.Size {
		t.Fatalf("copied %d bytes of %d, %v", n, b.Size, err)
	}
	return path
}

// wantSound fails the test if Check finds a fault.
func wantSound(t *testing.T, path string) Checked {
	t.Helper()
	done, err := Check(path, func(fault string) { t.Error(fault) })
	if err != nil {
		t.Error(err)
	}
	return done
}

// fileNames returns the names of the files in a directory, without the journal.
func fileNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "parley.db.journal-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestBackup makes a backup during concurrent appends. It must contain all messages that were
// appended before it began, and those of each conversation up to one instant.
func TestBackup(t *testing.T) {
	for name, budget := range map[string]int64{"file": 0, "journal": 1 << 20, "journal that is folded": 64 << 10} {
		t.Run(name, func(t *testing.T) { testBackup(t, budget) })
	}
}

func testBackup(t *testing.T, budget int64) {
	t.Helper()
	path := newPath(t)
	s := openJournaled(t, path, store.Options{MaxMessages: 1000}, budget)
	const conversations, before = 8, 40
	appendAll := func(from int, more func(i int) bool) {
		var group sync.WaitGroup
		for c := range conversations {
			group.Go(func() {
				for i := from; more(i); i++ {
					if _, err := s.Append(t.Context(), &store.Append{
						Tenant: "acme", ConversationID: fmt.Sprint(c), Messages: text(fmt.Sprintf("%d %s", i,
							strings.Repeat("word ", 200))),
					}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	}
	appendAll(0, func(i int) bool { return i < before })
	made := make(chan struct{})
	var backup string
	var group sync.WaitGroup
	group.Go(func() {
		appendAll(before, func(i int) bool {
			select {
			case <-made:
				return false
			default:
				return i < 900
			}
		})
	})
	backup = writeBackup(t, s)
	close(made)
	group.Wait()

	if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, []string{"parley.db"}) {
		t.Errorf("files = %v, want only the store", names)
	}
	if done := wantSound(t, backup); done.Conversations != conversations || done.Messages < conversations*before ||
		done.Bytes == 0 {
		t.Errorf("Check(backup) = %+v, want all conversations and earlier messages", done)
	}
	copied := open(t, backup, store.Options{})
	wantConsistent(t, copied)
	for c := range conversations {
		snapshot, err := copied.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: fmt.Sprint(c), Newest: -1})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := snapshot.Messages.Messages()
		if err != nil || len(messages) < before {
			t.Fatalf("backup has %d messages, want %d at least; %v", len(messages), before, err)
		}
		for i, m := range messages {
			if number, _, _ := strings.Cut(m.GetContent(), " "); number != fmt.Sprint(i) {
				t.Fatalf("message %d has number %s", i, number)
			}
		}
	}
}

// TestBackupRunning checks that only one backup can exist until it is closed, and that a second
// Close has no effect.
func TestBackupRunning(t *testing.T) {
	s := open(t, newPath(t), store.Options{})
	first, err := s.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context()); !errors.Is(err, store.ErrBackupRunning) {
		t.Errorf("second Backup = %v, want ErrBackupRunning", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := s.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	if _, err := s.Backup(t.Context()); !errors.Is(err, store.ErrBackupRunning) {
		t.Errorf("Backup after a repeated Close = %v, want ErrBackupRunning", err)
	}
	s.Close()
	if n, err := io.Copy(io.Discard, second); err != nil || n != second.Size {
		t.Errorf("read after the store was closed = %d bytes of %d, %v", n, second.Size, err)
	}
	second.Close()
	if _, err := s.Backup(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Backup after Close = %v, want ErrClosed", err)
	}
}

// TestBackupCancelled checks that a backup whose context has ended leaves no file and does not
// block the next backup.
func TestBackupCancelled(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Backup(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Backup = %v, want Canceled", err)
	}
	if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, []string{"parley.db"}) {
		t.Errorf("files = %v, want only the store", names)
	}
	b, err := s.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// TestUnfinishedFilesRemoved checks that Open removes the unfinished files of killed processes.
func TestUnfinishedFilesRemoved(t *testing.T) {
	path := newPath(t)
	open(t, path, store.Options{}).Close()
	for _, suffix := range []string{boltfile.UnfinishedSuffix, boltfile.BackupSuffix} {
		if err := os.WriteFile(path+suffix, []byte("cut off"), boltfile.FileMode); err != nil {
			t.Fatal(err)
		}
	}
	open(t, path, store.Options{})
	if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, []string{"parley.db"}) {
		t.Errorf("files = %v, want only the store", names)
	}
}
