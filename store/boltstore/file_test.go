package boltstore

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// newWrittenFile returns the path of a file that a store has written and closed.
func newWrittenFile(t *testing.T) string {
	t.Helper()
	path := newPath(t)
	s := open(t, path, store.Options{})
	for range 30 {
		appendTo(t, s, "a", strings.Repeat("word ", 1000))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// fileContent returns the content of a regular file, and nil for other files.
func fileContent(t *testing.T, path string) []byte {
	t.Helper()
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// editBytes returns a function that changes the bytes of a file.
func editBytes(change func([]byte) []byte) func(path string) error {
	return func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, change(b), 0o600)
	}
}

// editBolt returns a function that changes a file with bbolt.
func editBolt(change func(tx *bolt.Tx) error) func(path string) error {
	return func(path string) error {
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			return err
		}
		return errors.Join(db.Update(change), db.Close())
	}
}

func TestOpenDamaged(t *testing.T) {
	page := os.Getpagesize()
	for _, test := range []struct {
		name   string
		damage func(path string) error
		want   error
		cause  string
	}{
		{"empty", editBytes(func([]byte) []byte { return nil }), ErrDamaged, "empty"},
		{"short text", editBytes(func([]byte) []byte { return []byte("hello") }), ErrDamaged, "meta pages"},
		{"zeros", editBytes(func(b []byte) []byte { return make([]byte, len(b)) }), ErrDamaged, "meta pages"},
		{
			"noise", editBytes(func(b []byte) []byte { return bytes.Repeat([]byte("noise!"), len(b)/6) }), ErrDamaged,
			"meta pages",
		},
		{"both meta pages", editBytes(func(b []byte) []byte { b[40]++; b[page+40]++; return b }), ErrDamaged, "meta pages"},
		{"the first meta page", editBytes(func(b []byte) []byte { b[40]++; return b }), nil, ""},
		{"the second meta page", editBytes(func(b []byte) []byte { b[page+40]++; return b }), nil, ""},
		{"one page", editBytes(func(b []byte) []byte { return b[:page] }), ErrDamaged, "truncated"},
		{"ten pages", editBytes(func(b []byte) []byte { return b[:10*page] }), ErrDamaged, "truncated"},
		{"another program's", func(path string) error {
			theirs := editBolt(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err })
			return errors.Join(os.Remove(path), theirs(path))
		}, ErrDamaged, "of another program"},
		{"a newer schema", editBolt(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte(boltfile.SchemaKey),
				boltfile.EncodeSchema(boltfile.MaxSchemaVersion+1))
		}), ErrSchema, "schema 8"},
		{
			"no bucket", editBolt(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(layout.ExpiryBucket)) }), ErrDamaged,
			`"expiry"`,
		},
		{"counts", editBolt(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(layout.TenantsBucket)).Put(layout.TenantKey("acme"), make([]byte, 28))
		}), ErrDamaged, "counts"},
		{"a directory", func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}, ErrDamaged, "not a regular file"},
		{"a pipe", func(path string) error {
			return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600))
		}, ErrDamaged, "not a regular file"},
		{"a link", func(path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, ErrDamaged, "not a regular file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := newWrittenFile(t)
			if err := test.damage(path); err != nil {
				t.Fatal(err)
			}
			before := fileContent(t, path)
			s, err := Open(path, Options{})
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, test.want) {
				t.Fatalf("Open = %v, want %v", err, test.want)
			}
			if test.want == nil {
				return
			}
			if line := err.Error(); !strings.Contains(line, path) || !strings.Contains(line, test.cause) ||
				strings.Contains(line, "\n") {
				t.Errorf("Open = %q, want one line with %q and %q", line, path, test.cause)
			}
			if !bytes.Equal(before, fileContent(t, path)) {
				t.Error("Open changed the damaged file")
			}
		})
	}
}

func TestModes(t *testing.T) {
	t.Cleanup(func(mask int) func() { return func() { syscall.Umask(mask) } }(syscall.Umask(0)))
	mode := func(path string, want fs.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	dir := filepath.Join(t.TempDir(), "new", "newer")
	path := filepath.Join(dir, "parley.db")
	for range 2 {
		open(t, path, store.Options{}).Close()
		mode(filepath.Dir(dir), fs.ModeDir|0o700)
		mode(dir, fs.ModeDir|0o700)
		mode(path, 0o600)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnfinishedFile(t *testing.T) {
	path := newPath(t)
	if err := os.WriteFile(path+boltfile.UnfinishedSuffix, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, store.Options{})
	appendTo(t, s, "a", "hello")
	if _, err := os.Stat(path + boltfile.UnfinishedSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat of the unfinished file = %v, want ErrNotExist", err)
	}
}

func TestCreatedConcurrently(t *testing.T) {
	path := newPath(t)
	var opened atomic.Int32
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			s, err := Open(path, Options{Timeout: 1})
			if err == nil {
				opened.Add(1)
				t.Cleanup(func() { s.Close() })
			} else if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want ErrInUse", err)
			}
		})
	}
	group.Wait()
	if n := opened.Load(); n != 1 {
		t.Errorf("%d have opened it, want 1", n)
	}
}

func TestOpenBelowFile(t *testing.T) {
	path := filepath.Join(newWrittenFile(t), "parley.db") // Below a file.
	if _, err := Open(path, Options{}); err == nil || errors.Is(err, ErrDamaged) || errors.Is(err, ErrInUse) {
		t.Errorf("%v, want an error of the file system", err)
	}
}
