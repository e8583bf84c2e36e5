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

func TestCompact(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	for i := range 100 {
		appendTo(t, s, fmt.Sprint(i), strings.Repeat("word ", 10_000))
	}
	for i := range 99 {
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Compact(path, checkSound); !errors.Is(err, ErrInUse) {
		t.Errorf("Compact of an open file = %v, want ErrInUse", err)
	}
	s.Close()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	unsound := errors.New("unsound")
	if _, err := Compact(path, func(string) error { return unsound }); !errors.Is(err, unsound) {
		t.Errorf("Compact = %v, want the error of the check", err)
	}
	if now, err := os.ReadFile(path); err != nil || !slices.Equal(now, before) {
		t.Errorf("the file has changed, %v", err)
	}

	done, err := Compact(path, checkSound)
	if err != nil || done.Before != int64(len(before)) || done.After > done.Before/10 {
		t.Fatalf("Compact = %+v, %v, want a tenth of the size", done, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != done.After || info.Mode() != boltfile.FileMode {
		t.Errorf("compacted file = %v, %v", info, err)
	}
	if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, []string{"parley.db"}) {
		t.Errorf("files = %v, want only the store", names)
	}
	s, err = Open(path, Options{Check: func(_ string, closed bool) error {
		if !closed {
			return unsound
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"99"}) {
		t.Errorf("List = %v, want 99", got)
	}
	wantConsistent(t, s)
}

// TestCompactNewFiles compacts files whose transaction numbers are those of new files.
func TestCompactNewFiles(t *testing.T) {
	path := newPath(t)
	for n := range 6 {
		s := open(t, path, store.Options{})
		for i := range n {
			appendTo(t, s, "a", fmt.Sprint(i))
		}
		s.Close()
		if _, err := Compact(path, checkSound); err != nil {
			t.Errorf("Compact after %d writes = %v", n, err)
		}
		if _, err := Compact(path, checkSound); err != nil {
			t.Errorf("second Compact = %v", err)
		}
	}
}

func TestCompactOtherFiles(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "garbage": strings.Repeat("garbage", 10_000)} {
		path := newPath(t)
		if err := os.WriteFile(path, []byte(content), boltfile.FileMode); err != nil {
			t.Fatal(err)
		}
		if _, err := Compact(path, checkSound); !errors.Is(err, ErrDamaged) {
			t.Errorf("Compact(%s) = %v, want ErrDamaged", name, err)
		}
	}
	if _, err := Compact(newPath(t), checkSound); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Compact of a missing file = %v, want ErrNotExist", err)
	}
}
