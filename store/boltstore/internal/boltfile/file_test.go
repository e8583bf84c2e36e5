package boltfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// newFile returns the path of a new file with pages of pageSize bytes. It has the buckets of a store. Its
// last transactions wrote both meta pages.
func newFile(t *testing.T, pageSize int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parley.db")
	db, err := bolt.Open(path, FileMode, &bolt.Options{PageSize: pageSize})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(MakeBuckets), db.Update(putSchema(SchemaVersion)), db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// putSchema returns a transaction that writes a schema version.
func putSchema(version uint32) func(*bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte(SchemaKey), EncodeSchema(version))
	}
}

// change opens a file with bbolt and runs a transaction.
func change(t *testing.T, path string, run func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, FileMode, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(run), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// flip inverts a byte of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	if err == nil {
		_, err = f.WriteAt([]byte{^b[0]}, at)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// newestMeta returns the current meta page of a file.
func newestMeta(t *testing.T, path string) MetaPage {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewestMeta(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestNewestMeta damages each byte of the meta pages of files with pages of different sizes. The other meta
// page must be current then. If both are damaged, CheckFile must refuse the file.
func TestNewestMeta(t *testing.T) {
	const header, sumEnd = 16, 16 + 64
	for _, pageSize := range []int{1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		t.Run(fmt.Sprint(pageSize), func(t *testing.T) {
			path := newFile(t, pageSize)
			newest := newestMeta(t, path)
			if !newest.valid || newest.PageSize != int64(pageSize) {
				t.Fatalf("NewestMeta() = %+v, want a valid page with page size %d", newest, pageSize)
			}
			// bbolt writes the meta page of a transaction to the page with the number of its lowest bit.
			start := int64(newest.transaction%2) * int64(pageSize)
			for at := int64(header); at < sumEnd; at++ {
				flip(t, path, start+at)
				if got := newestMeta(t, path); !got.valid || got.transaction != newest.transaction-1 {
					t.Errorf("NewestMeta() with byte %d damaged = %+v, want transaction %d", at, got, newest.transaction-1)
				}
				if err := CheckFile(path); err != nil {
					t.Errorf("CheckFile() with byte %d of one meta page damaged = %v, want nil", at, err)
				}
				flip(t, path, start+at)
			}
			flip(t, path, header)
			flip(t, path, int64(pageSize)+header)
			if got := newestMeta(t, path); got.valid {
				t.Errorf("NewestMeta() with both pages damaged = %+v, want an invalid page", got)
			}
			if err := CheckFile(path); !errors.Is(err, ErrDamaged) {
				t.Errorf("CheckFile() with both meta pages damaged = %v, want ErrDamaged", err)
			}
		})
	}
}

// TestCheckFileSizes truncates a file to each number of pages, and to sizes between them. CheckFile and
// CheckReadOnly must accept only the complete file, and must not change its size.
func TestCheckFileSizes(t *testing.T) {
	const pageSize = 4 << 10
	path := newFile(t, pageSize)
	complete, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used := int64(newestMeta(t, path).Pages) * pageSize
	for size := int64(0); size <= int64(len(complete)); size += pageSize / 2 {
		if err := os.WriteFile(path, complete[:size], FileMode); err != nil {
			t.Fatal(err)
		}
		_, readOnlyErr := CheckReadOnly(path)
		for name, err := range map[string]error{"CheckFile": CheckFile(path), "CheckReadOnly": readOnlyErr} {
			if size >= used && err != nil || size < used && !errors.Is(err, ErrDamaged) {
				t.Errorf("%s() of %d bytes, of which %d are in use = %v, want accepted = %v", name, size, used, err, size >= used)
			}
		}
		if info, err := os.Stat(path); err != nil || info.Size() != size {
			t.Errorf("Stat() after the checks = %v, %v, want %d bytes", info, err, size)
		}
	}
}

// TestCheckFileKinds checks that only regular files are accepted, that links are not followed, and that
// only CheckFile removes the access of other users.
func TestCheckFileKinds(t *testing.T) {
	path := newFile(t, os.Getpagesize())
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{link, filepath.Dir(path)} {
		_, err := CheckReadOnly(other)
		if checked := CheckFile(other); !errors.Is(checked, ErrDamaged) || !errors.Is(err, ErrDamaged) {
			t.Errorf("CheckFile(%s), CheckReadOnly() = %v, %v, want ErrDamaged", other, checked, err)
		}
	}
	if _, err := OpenExisting(link, os.O_RDONLY, 0); err == nil {
		t.Error("OpenExisting() of a symbolic link = nil, want an error")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if info, err := CheckReadOnly(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("CheckReadOnly() = %v, %v, want mode 0644", info, err)
	}
	if err := CheckFile(path); err != nil {
		t.Errorf("CheckFile() = %v, want nil", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != FileMode {
		t.Errorf("Stat() after CheckFile = %v, %v, want mode %v", info, err, os.FileMode(FileMode))
	}
}

// TestOpenInUse opens a file that is open.
func TestOpenInUse(t *testing.T) {
	path := newFile(t, os.Getpagesize())
	db, err := Open(path, time.Second, nil)
	if err != nil {
		t.Fatalf("Open() = %v, want nil", err)
	}
	if _, err := Open(path, time.Millisecond, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("Open() of an open file = %v, want ErrInUse", err)
	}
	if _, err := OpenReadOnly(path, time.Millisecond); !errors.Is(err, ErrInUse) {
		t.Errorf("OpenReadOnly() of an open file = %v, want ErrInUse", err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
}
