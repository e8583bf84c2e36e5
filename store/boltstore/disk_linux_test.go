package boltstore

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/parleyhq/parley/store"
)

// Whoever reads the file has nothing read ahead, and restored files leave memory: see
// readNoFurther. A single read without that advice is enough for all that follow to be read
// ahead, also by those who have given it.
func TestReadNoFurther(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	for range 16 { // More than any kernel reads ahead at first.
		appendTo(t, s, "long", strings.Repeat("word ", 50<<10))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := openCold(t, path)
	for _, test := range []struct {
		name  string
		do    func() error
		pages uint64 // at most in memory then
	}{
		{"look at it", func() error { return checkFile(path) }, 16}, // Where a meta page of any size may be.
		{"read from it", func() error {
			f, err := openExisting(path, os.O_RDONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.ReadAt(make([]byte, 3*os.Getpagesize()), 0)
			return errors.Join(err, f.Close())
		}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			adviseDontNeed(file)
			if err := test.do(); err != nil {
				t.Fatal(err)
			}
			if got := cachedPages(t, file); got > test.pages {
				t.Errorf("%d pages are in memory, at most %d were asked for", got, test.pages)
			}
		})
	}
	t.Run("restore it", func(t *testing.T) {
		to := newPath(t)
		if _, err := Restore(t.Context(), path, to, RestoreOptions{Check: soundly}); err != nil {
			t.Fatal(err)
		}
		restored, err := os.Open(to)
		if err != nil {
			t.Fatal(err)
		}
		if got := cachedPages(t, restored); got != 0 {
			t.Errorf("%d pages of the copy are in memory", got)
		}
		if err := restored.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// openCold opens a file, and takes it out of memory to see whether that can be done.
func openCold(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	adviseDontNeed(f)
	if cachedPages(t, f) > 0 {
		t.Skip("what is on this file system does not leave memory")
	}
	return f
}

// cachedPages returns how many pages of a file are in memory.
func cachedPages(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var pages unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &pages, 0)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel does not tell what is in memory")
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages.Cache
}
