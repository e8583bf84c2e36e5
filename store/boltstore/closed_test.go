package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

// TestClosed checks that Options.Check learns whether the last process closed the file in order.
func TestClosed(t *testing.T) {
	path := newPath(t)
	checks, unclosed := 0, 0
	check := func(at string, closed bool) error {
		checks++
		if !closed {
			unclosed++
		}
		if at != path {
			t.Errorf("Check was called with %s", at)
		}
		return nil
	}
	start := func(o Options) *Store {
		t.Helper()
		s, err := Open(path, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	for name, run := range map[string]func(s *Store){
		"nothing written": func(*Store) {},
		"written":         func(s *Store) { appendTo(t, s, "a", "hello") },
		"held": func(s *Store) {
			if err := s.Hold(t.Context(), &store.Hold{Tenant: "acme", ConversationIDs: []string{"a"}}); err != nil {
				t.Error(err)
			}
		},
	} {
		for range 2 {
			s := start(Options{Check: check})
			run(s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if unclosed != 0 {
			t.Fatalf("%s: %d starts found the file not closed in order", name, unclosed)
		}
	}
	if checks != 5 { // The first start created the file.
		t.Errorf("Check was called %d times in 6 starts, want 5", checks)
	}

	s := start(Options{Check: check})
	appendTo(t, s, "a", "hello")
	path = writeBackup(t, s) // This file is as if the process had been killed.
	unsound := errors.New("unsound")
	if _, err := Open(path, Options{Check: func(string, bool) error { return unsound }}); !errors.Is(err, unsound) {
		t.Errorf("Open = %v, want the error of Check", err)
	}
	for range 2 { // The first start closes it in order.
		start(Options{Check: check}).Close()
	}
	if unclosed != 1 {
		t.Errorf("%d starts found the file not closed in order, want one", unclosed)
	}
}

// TestClosedAfterFailure checks that the file of a failed store does not count as closed in order.
func TestClosedAfterFailure(t *testing.T) {
	path := newPath(t)
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, "a", "hello")
	s.fail(errors.New("input/output error"))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	closed := true
	s, err = Open(path, Options{Check: func(_ string, inOrder bool) error { closed = inOrder; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if closed {
		t.Error("the file counts as closed in order")
	}
}

// TestClosedAfterDamage closes stores that have read a damaged page. Their files must not count as
// closed in order.
func TestClosedAfterDamage(t *testing.T) {
	for name, meet := range map[string]func(s *Store) error{
		"a read": func(s *Store) error {
			_, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c15", Newest: -1})
			return err
		},
		"a write": func(s *Store) error {
			appendTo(t, s, "c20", "hello")
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "c15", Messages: text("hello")})
			return err
		},
		"a sweep": func(s *Store) error { // Sweep defers conversations that it cannot read.
			_, err := s.Sweep(t.Context(), 10)
			return errors.Join(err, store.ErrCorrupt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, c := newPath(t), newClock()
			s := open(t, path, store.Options{Now: c.Now, TTL: time.Hour})
			for i := range 12 {
				appendTo(t, s, fmt.Sprint("c", 10+i), markedText(fmt.Sprint("c", 10+i)))
			}
			s.Close()
			flipLeaf(t, path, "mark of c15")
			c.advance(2 * time.Hour)
			s = open(t, path, store.Options{Now: c.Now, TTL: time.Hour})
			if err := meet(s); !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("meeting the page = %v, want ErrCorrupt", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
			flipLeaf(t, path, "mark of c15")
			closed := true
			s, err := Open(path, Options{Check: func(_ string, inOrder bool) error { closed = inOrder; return nil }})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			if closed {
				t.Error("the file counts as closed in order")
			}
		})
	}
}

// TestOwner checks that Open refuses a file of another user, and that Check and Restore read it.
func TestOwner(t *testing.T) {
	path := newPath(t)
	open(t, path, store.Options{}).Close()
	if err := os.Chown(path, os.Geteuid()+1, -1); err != nil {
		t.Skipf("only root can give a file away: %v", err)
	}
	_, err := Open(path, Options{})
	if !errors.Is(err, ErrOwner) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "chown") {
		t.Errorf("Open = %v, want ErrOwner with the file and what to do", err)
	}
	if done := wantSound(t, path); done.Bytes == 0 {
		t.Error("Check read no bytes")
	}
	if _, err := Restore(t.Context(), path, filepath.Join(t.TempDir(), "parley.db"), RestoreOptions{}); err != nil {
		t.Errorf("Restore = %v", err)
	}
}
