package boltstore

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhq/parley/store"
)

// TestNoSpaceForACopy: what does not fit the disk is refused ahead, and leaves nothing there.
func TestNoSpaceForACopy(t *testing.T) {
	dir := small(t)
	s := openSmall(t, dir, nil, nil)
	fill(t, s, "b")
	wantRefused := func(what string, err error) {
		t.Helper()
		noSpace, ok := errors.AsType[*store.BackupSpaceError](err)
		if !ok || noSpace.Free >= noSpace.Needed || noSpace.Needed == 0 {
			t.Errorf("%s: %v, want BackupSpaceError", what, err)
		}
		if names := fileNames(t, dir); !slices.Equal(names, []string{"parley.db"}) {
			t.Errorf("%s: there is %v", what, names)
		}
	}
	for range 2 { // The first does not keep the turn of the next.
		_, err := s.Backup(t.Context())
		wantRefused("backup", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "parley.db")
	_, err := Compact(path, soundly)
	wantRefused("compact", err)

	large := open(t, newPath(t), store.Options{})
	for range 20 {
		appendTo(t, large, "a", strings.Repeat("word ", 20_000))
	}
	_, err = Restore(t.Context(), writeBackup(t, large), path, RestoreOptions{Force: true})
	wantRefused("restore", err)
	wantSound(t, path)
}
