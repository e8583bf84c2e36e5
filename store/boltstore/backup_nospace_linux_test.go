package boltstore

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhq/parley/store"
)

// TestNoSpaceForCopy checks that a copy that does not fit on the disk is refused in advance, and
// leaves no file.
func TestNoSpaceForCopy(t *testing.T) {
	dir := mountSmall(t)
	s := openSmall(t, dir, nil, nil)
	fillDisk(t, s, "b")
	wantRefused := func(what string, err error) {
		t.Helper()
		noSpace, ok := errors.AsType[*store.BackupSpaceError](err)
		if !ok || noSpace.Free >= noSpace.Needed || noSpace.Needed == 0 {
			t.Errorf("%s = %v, want BackupSpaceError", what, err)
		}
		if names := fileNames(t, dir); !slices.Equal(names, []string{"parley.db"}) {
			t.Errorf("files after %s = %v, want only the store", what, names)
		}
	}
	for range 2 { // A failed backup must not block the next one.
		_, err := s.Backup(t.Context())
		wantRefused("backup", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "parley.db")
	_, err := Compact(path, checkSound)
	wantRefused("compact", err)

	large := open(t, newPath(t), store.Options{})
	for range 20 {
		appendTo(t, large, "a", strings.Repeat("word ", 20_000))
	}
	_, err = Restore(t.Context(), writeBackup(t, large), path, RestoreOptions{Force: true})
	wantRefused("restore", err)
	wantSound(t, path)
}
