package boltstore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// newBackup makes a backup of a store with conversation "kept".
func newBackup(t *testing.T) string {
	t.Helper()
	s := open(t, newPath(t), store.Options{})
	appendTo(t, s, "kept", "hello")
	return writeBackup(t, s)
}

func checkSound(path string) error {
	_, err := Check(path, func(string) {})
	return err
}

func TestRestore(t *testing.T) {
	backup, path := newBackup(t), filepath.Join(t.TempDir(), "new", "parley.db")
	done, err := Restore(t.Context(), backup, path, RestoreOptions{Check: checkSound})
	if err != nil || done.Aside != "" {
		t.Fatalf("Restore = %+v, %v", done, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != done.Bytes || info.Mode() != boltfile.FileMode {
		t.Errorf("restored file = %v, %v", info, err)
	}
	s := open(t, path, store.Options{})
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("List of the restored store = %v, want kept", got)
	}
	appendTo(t, s, "later", "hello")

	force := RestoreOptions{Check: checkSound, Force: true, Now: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)}
	if _, err := Restore(t.Context(), backup, path, force); !errors.Is(err, ErrInUse) {
		t.Errorf("Restore over an open file = %v, want ErrInUse", err)
	}
	s.Close()
	if _, err := Restore(t.Context(), backup, path, RestoreOptions{Check: checkSound}); !errors.Is(err, ErrExists) {
		t.Errorf("Restore without force = %v, want ErrExists", err)
	}
	done, err = Restore(t.Context(), backup, path, force)
	if want := path + ".before-20260203T040506Z"; err != nil || done.Aside != want {
		t.Fatalf("Restore = %+v, %v, want the old file in %s", done, err, want)
	}
	second, err := Restore(t.Context(), backup, path, force) // Within the same second.
	if want := done.Aside + "-2"; err != nil || second.Aside != want {
		t.Fatalf("second Restore = %+v, %v, want the old file in %s", second, err, want)
	}
	for path, want := range map[string][]string{path: {"kept"}, done.Aside: {"later", "kept"}, second.Aside: {"kept"}} {
		if got := listIDs(t, open(t, path, store.Options{}), "acme"); !slices.Equal(got, want) {
			t.Errorf("List of %s = %v, want %v", path, got, want)
		}
	}
}

// TestRestoreByRoot checks that a file which root restores belongs to the owner of the directory, which is the user of
// the server, and that the journal of the store that is moved aside keeps its owner.
func TestRestoreByRoot(t *testing.T) {
	path := killedStore(t)
	for _, name := range []string{filepath.Dir(path), path, journalOf(t, path)} {
		if err := os.Chown(name, os.Geteuid()+1, -1); err != nil {
			t.Skipf("only root can give a directory away: %v", err)
		}
	}
	wantSound(t, path)
	done, err := Restore(t.Context(), killedStore(t), path, RestoreOptions{Check: checkSound, Force: true})
	if err != nil || len(done.AsideJournals) != 1 {
		t.Fatalf("Restore = %+v, %v, want one journal", done, err)
	}
	for _, name := range []string{path, done.Aside, done.AsideJournals[0]} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if owner, known := boltfile.OwnerOf(info); !known || owner != os.Geteuid()+1 {
			t.Errorf("%s belongs to user %d, want that of the server", name, owner)
		}
	}
}

// TestRestoreRefused restores from a file that a server has open, and from one with the name that
// the copy needs.
func TestRestoreRefused(t *testing.T) {
	source := newPath(t)
	s := open(t, source, store.Options{})
	if _, err := Restore(t.Context(), source, newPath(t), RestoreOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("Restore from an open file = %v, want ErrInUse", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	unfinished := source + boltfile.UnfinishedSuffix
	if err := os.Rename(source, unfinished); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), unfinished, source, RestoreOptions{})
	if err == nil || !strings.Contains(err.Error(), "give it another name") {
		t.Errorf("Restore from the name of the copy = %v, want an error", err)
	}
	if names := fileNames(t, filepath.Dir(source)); !slices.Equal(names, []string{filepath.Base(unfinished)}) {
		t.Errorf("files = %v, want only the backup", names)
	}
}

// TestRestoreFails checks that a failed Restore changes nothing.
func TestRestoreFails(t *testing.T) {
	backup := newBackup(t)
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) string {
		path := newPath(t)
		if err := os.WriteFile(path, content, boltfile.FileMode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flipped := slices.Clone(whole)
	flipped[bytes.Index(flipped, []byte("hello"))] ^= 1
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	unsound := errors.New("unsound")
	tests := map[string]struct {
		ctx    context.Context
		backup string
		check  func(string) error
		want   error
	}{
		"truncated":   {t.Context(), write(whole[:len(whole)-1]), checkSound, ErrDamaged},
		"empty":       {t.Context(), write(nil), checkSound, ErrDamaged},
		"garbage":     {t.Context(), write([]byte(strings.Repeat("garbage", 10000))), checkSound, ErrDamaged},
		"a bit":       {t.Context(), write(flipped), checkSound, ErrDamaged},
		"missing":     {t.Context(), newPath(t), checkSound, os.ErrNotExist},
		"interrupted": {ended, backup, checkSound, context.Canceled},
		"the check":   {t.Context(), backup, func(string) error { return unsound }, unsound},
		"the pages":   {t.Context(), backup, nil, unsound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			for _, before := range [][]string{nil, {"parley.db"}} {
				if before != nil {
					open(t, path, store.Options{}).Close()
				}
				o := RestoreOptions{Check: test.check, Force: true}
				if test.check == nil {
					o.CheckPages = func(string) error { return unsound }
				}
				_, err := Restore(test.ctx, test.backup, path, o)
				if !errors.Is(err, test.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("Restore = %v, want %v in one line", err, test.want)
				}
				if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, before) {
					t.Errorf("files = %v, want %v", names, before)
				}
			}
		})
	}
}
