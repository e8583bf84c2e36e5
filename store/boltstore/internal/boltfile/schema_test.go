package boltfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// TestCheckSchema checks which versions and which sets of buckets CheckSchema accepts.
func TestCheckSchema(t *testing.T) {
	remove := func(bucket string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(bucket)) }
	}
	for _, test := range []struct {
		name   string
		change func(*bolt.Tx) error
		want   error
	}{
		{"current version", putSchema(SchemaVersion), nil},
		{"older version", putSchema(oldSchemaVersion), nil},
		{"with a journal", putSchema(JournaledSchemaVersion), nil},
		{"next version", putSchema(MaxSchemaVersion + 1), ErrSchema},
		{"version 0", putSchema(0), ErrDamaged},
		{"short version", func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte(SchemaKey), []byte{SchemaVersion})
		}, ErrDamaged},
		{"no version", remove(layout.MetaBucket), ErrDamaged},
		{"no bucket of tenants", remove(layout.TenantsBucket), ErrDamaged},
		{"no bucket of conversations", remove(layout.ConversationsBucket), ErrDamaged},
		{"no bucket of ids", remove(layout.IDsBucket), ErrDamaged},
		{"no bucket of expiry", remove(layout.ExpiryBucket), ErrDamaged},
		{"no bucket of turns", remove(layout.TurnsBucket), ErrDamaged},
		{"no bucket of sessions, as in old files", remove(layout.SessionsBucket), nil},
		{"no bucket of ends, as in old files", remove(layout.EndsBucket), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := newFile(t, os.Getpagesize())
			change(t, path, test.change)
			db, err := OpenReadOnly(path, time.Second)
			if err != nil {
				t.Fatalf("OpenReadOnly() = %v, want nil", err)
			}
			if err := db.View(CheckSchema); !errors.Is(err, test.want) {
				t.Errorf("CheckSchema() = %v, want %v", err, test.want)
			}
			if err := db.Close(); err != nil {
				t.Errorf("Close() = %v, want nil", err)
			}
		})
	}
}

// TestMarkClosed checks that the mark of an orderly close is valid only until the next write.
func TestMarkClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "parley.db")
	db, err := Open(path, time.Second, func(string, bool) error {
		t.Error("Open() checks a new file, want no check")
		return nil
	})
	if err != nil {
		t.Fatalf("Open() = %v, want nil", err)
	}
	for _, step := range []struct {
		name       string
		run        func(*bolt.Tx) error
		want       error
		wantClosed bool
	}{
		{"MarkClosed of a new file", MarkClosed, ErrUnchanged, true},
		{"write", putSchema(SchemaVersion), nil, false},
		{"UnmarkClosed after a write", UnmarkClosed, ErrUnchanged, false},
		{"MarkClosed", MarkClosed, nil, true},
		{"second MarkClosed", MarkClosed, ErrUnchanged, true},
		{"UnmarkClosed", UnmarkClosed, nil, false},
		{"MarkClosed after UnmarkClosed", MarkClosed, nil, true},
	} {
		if err := db.Update(step.run); !errors.Is(err, step.want) {
			t.Errorf("%s = %v, want %v", step.name, err, step.want)
		}
		if err := db.Close(); err != nil {
			t.Fatalf("Close() = %v, want nil", err)
		}
		closed := !step.wantClosed
		if db, err = Open(path, time.Second, func(_ string, c bool) error { closed = c; return nil }); err != nil {
			t.Fatalf("Open() = %v, want nil", err)
		}
		if closed != step.wantClosed {
			t.Errorf("closed after %s = %v, want %v", step.name, closed, step.wantClosed)
		}
	}
	refused := errors.New("refused")
	if err := db.Close(); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
	if _, err := Open(path, time.Second, func(string, bool) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("Open() whose check fails = %v, want the error of the check", err)
	}
}
