package boltstore

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhq/parley/store"
)

// TestNoSpace fills a small file system.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("only root can mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	var changes int
	s := open(t, filepath.Join(dir, "parley.db"), store.Options{
		MaxMessages: 1000,
		Observe:     func(c []store.Change) { changes += len(c) },
	})
	s.options.OnFailure = func(err error) { t.Errorf("failed: %v", err) }
	for _, id := range []string{"a", "b"} {
		appendTo(t, s, id, "hello")
	}
	var written int
	for written = changes; ; written++ {
		_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "a", Messages: text(strings.Repeat("word ", 4000))})
		if errors.Is(err, store.ErrNoSpace) {
			break
		}
		if err != nil || written > 100 {
			t.Fatalf("write %d: %v", written, err)
		}
	}
	if got := listed(t, s, "acme"); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("there are %v", got)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
		t.Error(err)
	}
	appendTo(t, s, "b", strings.Repeat("word ", 4000))
	if changes != written+2 {
		t.Errorf("told of %d changes, want %d", changes, written+2)
	}
	consistent(t, s)
}
