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
	if _, err := Compact(path, soundly); !errors.Is(err, ErrInUse) {
		t.Errorf("while it is open: %v, want ErrInUse", err)
	}
	s.Close()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	unsound := errors.New("unsound")
	if _, err := Compact(path, func(string) error { return unsound }); !errors.Is(err, unsound) {
		t.Errorf("%v, want what the check says", err)
	}
	if now, err := os.ReadFile(path); err != nil || !slices.Equal(now, before) {
		t.Errorf("the file has changed: %v", err)
	}

	done, err := Compact(path, soundly)
	if err != nil || done.Before != int64(len(before)) || done.After > done.Before/10 {
		t.Fatalf("%+v, %v", done, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != done.After || info.Mode() != fileMode {
		t.Errorf("there is %v: %v", info, err)
	}
	if names := fileNames(t, filepath.Dir(path)); !slices.Equal(names, []string{"parley.db"}) {
		t.Errorf("there is %v", names)
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
		t.Errorf("there is %v", got)
	}
	wantConsistent(t, s)
}

// TestCompactYoungFiles: their transactions have the numbers that those of new ones have.
func TestCompactYoungFiles(t *testing.T) {
	path := newPath(t)
	for n := range 6 {
		s := open(t, path, store.Options{})
		for i := range n {
			appendTo(t, s, "a", fmt.Sprint(i))
		}
		s.Close()
		if _, err := Compact(path, soundly); err != nil {
			t.Errorf("after %d writes: %v", n, err)
		}
		if _, err := Compact(path, soundly); err != nil {
			t.Errorf("once more: %v", err)
		}
	}
}

func TestCompactOfOtherFiles(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "garbage": strings.Repeat("garbage", 10_000)} {
		path := newPath(t)
		if err := os.WriteFile(path, []byte(content), fileMode); err != nil {
			t.Fatal(err)
		}
		if _, err := Compact(path, soundly); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
	if _, err := Compact(newPath(t), soundly); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v, want ErrNotExist", err)
	}
}
