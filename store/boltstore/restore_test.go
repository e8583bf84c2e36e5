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
)

// newBackup makes a backup of a store with the conversation "kept".
func newBackup(t *testing.T) string {
	t.Helper()
	s := open(t, newPath(t), store.Options{})
	appendTo(t, s, "kept", "hello")
	return writeBackup(t, s)
}

func soundly(path string) error {
	_, err := Check(path, func(string) {})
	return err
}

func TestRestore(t *testing.T) {
	backup, path := newBackup(t), filepath.Join(t.TempDir(), "new", "parley.db")
	done, err := Restore(t.Context(), backup, path, RestoreOptions{Check: soundly})
	if err != nil || done.Aside != "" {
		t.Fatalf("%+v, %v", done, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != done.Bytes || info.Mode() != fileMode {
		t.Errorf("there is %v: %v", info, err)
	}
	s := open(t, path, store.Options{})
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("restored %v", got)
	}
	appendTo(t, s, "later", "hello")

	force := RestoreOptions{Check: soundly, Force: true, Now: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)}
	if _, err := Restore(t.Context(), backup, path, force); !errors.Is(err, ErrInUse) {
		t.Errorf("while it is open: %v, want ErrInUse", err)
	}
	s.Close()
	if _, err := Restore(t.Context(), backup, path, RestoreOptions{Check: soundly}); !errors.Is(err, ErrExists) {
		t.Errorf("without force: %v, want ErrExists", err)
	}
	done, err = Restore(t.Context(), backup, path, force)
	if want := path + ".before-20260203T040506Z"; err != nil || done.Aside != want {
		t.Fatalf("%+v, %v, want the old one in %s", done, err, want)
	}
	again, err := Restore(t.Context(), backup, path, force) // In the same second.
	if want := done.Aside + "-2"; err != nil || again.Aside != want {
		t.Fatalf("%+v, %v, want the old one in %s", again, err, want)
	}
	for path, want := range map[string][]string{path: {"kept"}, done.Aside: {"later", "kept"}, again.Aside: {"kept"}} {
		if got := listIDs(t, open(t, path, store.Options{}), "acme"); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", path, got, want)
		}
	}
}

// TestRestoreOfAnother refuses what a server has open, which changes while it is copied, and what
// the copy would take the name of.
func TestRestoreOfAnother(t *testing.T) {
	source := newPath(t)
	s := open(t, source, store.Options{})
	if _, err := Restore(t.Context(), source, newPath(t), RestoreOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("of an open one: %v, want ErrInUse", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	unfinished := source + unfinishedSuffix
	if err := os.Rename(source, unfinished); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), unfinished, source, RestoreOptions{})
	if err == nil || !strings.Contains(err.Error(), "give it another name") {
		t.Errorf("of one with the name of the copy: %v", err)
	}
	if names := fileNames(t, filepath.Dir(source)); !slices.Equal(names, []string{filepath.Base(unfinished)}) {
		t.Errorf("there is %v", names)
	}
}

// TestRestoreThatFails leaves all as it was.
func TestRestoreThatFails(t *testing.T) {
	backup := newBackup(t)
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) string {
		path := newPath(t)
		if err := os.WriteFile(path, content, fileMode); err != nil {
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
		"cut off":     {t.Context(), write(whole[:len(whole)-1]), soundly, ErrDamaged},
		"empty":       {t.Context(), write(nil), soundly, ErrDamaged},
		"garbage":     {t.Context(), write([]byte(strings.Repeat("garbage", 10000))), soundly, ErrDamaged},
		"a bit":       {t.Context(), write(flipped), soundly, ErrDamaged},
		"missing":     {t.Context(), newPath(t), soundly, os.ErrNotExist},
		"interrupted": {ended, backup, soundly, context.Canceled},
		"the check":   {t.Context(), backup, func(string) error { return unsound }, unsound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			for _, before := range [][]string{nil, {"parley.db"}} {
				if before != nil {
					open(t, path, store.Options{}).Close()
				}
				_, err := Restore(test.ctx, test.backup, path, RestoreOptions{Check: test.check, Force: true})
				if !errors.Is(err, test.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, want %v in one line", err, test.want)
				}
				if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, before) {
					t.Errorf("there is %v, want %v", names, before)
				}
			}
		})
	}
}
