package boltstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhq/parley/store"
)

// TestTargetInUse: the file of a migration belongs to it. Neither another migration nor a store takes it.
func TestTargetInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "parley.db")
	first, err := OpenTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTarget(path); !errors.Is(err, ErrInUse) {
		t.Errorf("OpenTarget beside another = %v, want ErrInUse", err)
	}
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "run parleyd migrate again") {
		t.Errorf("Open during a migration = %v, want what to do", err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("a store was made beside the migration")
	}
	if err := first.Finish(t.Context()); err != nil {
		t.Errorf("Finish = %v, want nil", err)
	}
	if err := open(t, path, store.Options{}).Close(); err != nil {
		t.Errorf("Close of the copy = %v, want nil", err)
	}
}
