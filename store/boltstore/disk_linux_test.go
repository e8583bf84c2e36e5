package boltstore

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// TestNoReadAhead checks that reads of the file cause no read-ahead and that restored files leave
// the page cache, see adviseRandom. One read without that advice is enough to enable read-ahead for
// all later reads, also of other descriptors.
func TestNoReadAhead(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	for range 16 { // More than a kernel reads ahead at first.
		appendTo(t, s, "long", strings.Repeat("word ", 50<<10))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := openUncached(t, path)
	for _, test := range []struct {
		name  string
		do    func() error
		pages uint64 // maximum number of cached pages afterwards
	}{
		{"check the file", func() error { return boltfile.CheckFile(path) }, checkedPages(t, path)},
		{"read from the file", func() error {
			f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.ReadAt(make([]byte, 3*os.Getpagesize()), 0)
			return errors.Join(err, f.Close())
		}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			boltfile.AdviseDontNeed(file)
			if err := test.do(); err != nil {
				t.Fatal(err)
			}
			if got := cachedPages(t, file); got > test.pages {
				t.Errorf("%d pages are cached, want %d at most", got, test.pages)
			}
		})
	}
	t.Run("restore the file", func(t *testing.T) {
		to := newPath(t)
		if _, err := Restore(t.Context(), path, to, RestoreOptions{Check: checkSound}); err != nil {
			t.Fatal(err)
		}
		restored, err := os.Open(to)
		if err != nil {
			t.Fatal(err)
		}
		if got := cachedPages(t, restored); got != 0 {
			t.Errorf("%d pages of the copy are cached, want none", got)
		}
		if err := restored.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// checkedPages returns the number of pages of memory with what CheckFile reads: the places where the second meta page
// may be, of which the first few are in one page, and the list of free pages. Its length depends on how the writes met
// in transactions.
func checkedPages(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	newest, err := boltfile.NewestMeta(f)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const moreAt = 12 // in the header of the list: how many more pages belong to it
	var more [4]byte
	if _, err := f.ReadAt(more[:], int64(newest.Freelist)*newest.PageSize+moreAt); err != nil {
		t.Fatal(err)
	}
	pages, size := map[int64]bool{0: true}, int64(os.Getpagesize())
	for at := int64(1 << 10); at <= 16<<20 && at < info.Size(); at <<= 1 {
		pages[at/size] = true
	}
	first := int64(newest.Freelist) * newest.PageSize
	last := first + (1+int64(binary.NativeEndian.Uint32(more[:])))*newest.PageSize - 1
	for page := first / size; page <= last/size; page++ {
		pages[page] = true
	}
	return uint64(len(pages))
}

// openUncached opens a file and drops it from the page cache. It skips the test if the file system
// does not permit that.
func openUncached(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	boltfile.AdviseDontNeed(f)
	if cachedPages(t, f) > 0 {
		t.Skip("files of this file system stay in memory")
	}
	return f
}

// cachedPages returns the number of pages of a file in the page cache.
func cachedPages(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var pages unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &pages, 0)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel has no cachestat")
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages.Cache
}
