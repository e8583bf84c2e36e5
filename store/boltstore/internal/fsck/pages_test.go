package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// newFile returns the path of a file with pages of pageSize bytes, and its content. The file has branches,
// leaves, pages that belong together, small buckets in their parents, and free pages.
func newFile(t *testing.T, pageSize int) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "parley.db")
	db, err := bolt.Open(path, boltfile.FileMode, &bolt.Options{PageSize: pageSize})
	if err != nil {
		t.Fatal(err)
	}
	fill := func(tx *bolt.Tx) error {
		for i := range pageSize / 10 {
			key, value := fmt.Appendf(nil, "%06d", i), []byte(strings.Repeat("v", 100))
			if err := tx.Bucket([]byte(layout.IDsBucket)).Put(key, value); err != nil {
				return err
			}
		}
		return tx.Bucket([]byte(layout.TurnsBucket)).Put([]byte("large"), make([]byte, 3*pageSize))
	}
	if err := errors.Join(db.Update(boltfile.MakeBuckets), db.Update(fill), db.Update(fill), db.Close()); err != nil {
		t.Fatal(err)
	}
	if content, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// usedPages returns the flags of the pages in use by their offsets. Of pages that belong together it returns
// the first.
func usedPages(t *testing.T, path string, pageSize int) map[int64]uint16 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	meta, err := boltfile.NewestMeta(f)
	if err != nil {
		t.Fatal(err)
	}
	e := &elementChecker{
		checker: &checker{report: func(fault string) { t.Error(fault) }}, file: f, meta: meta, seen: make([]bool, meta.Pages),
	}
	if err := e.page(meta.Root); err != nil {
		t.Fatal(err)
	}
	pages := map[int64]uint16{}
	for number := range int64(meta.Pages) {
		var header [pageHeaderSize]byte
		if _, err := f.ReadAt(header[:], number*int64(pageSize)); err != nil {
			t.Fatal(err)
		}
		// The later pages of those that belong together have no header.
		if e.seen[number] && binary.NativeEndian.Uint64(header[:]) == uint64(number) {
			pages[number*int64(pageSize)] = binary.NativeEndian.Uint16(header[8:])
		}
	}
	return pages
}

// TestCheckPageHeaders damages each byte of the headers of up to 8 pages of each kind, in files with pages
// of different sizes. CheckPages must report each, and must not change the file.
func TestCheckPageHeaders(t *testing.T) {
	for _, pageSize := range []int{1 << 10, 4 << 10, 16 << 10} {
		t.Run(fmt.Sprint(pageSize), func(t *testing.T) {
			path, content := newFile(t, pageSize)
			if done, err := CheckPages(path, func(fault string) { t.Error(fault) }); err != nil || done.Faults > 0 {
				t.Fatalf("CheckPages() of a sound file = %+v, %v, want no fault", done, err)
			}
			kinds := map[uint16]int{}
			pages := usedPages(t, path, pageSize)
			for _, offset := range slices.Sorted(maps.Keys(pages)) {
				kinds[pages[offset]]++
				if kinds[pages[offset]] > 8 {
					continue // Enough pages of this kind.
				}
				for at := offset; at < offset+pageHeaderSize; at++ {
					damaged := bytes.Clone(content)
					damaged[at] = ^damaged[at]
					checkReported(t, path, damaged, offset/int64(pageSize), at-offset)
				}
			}
			if kinds[branchFlag] == 0 || kinds[leafFlag] < 2 {
				t.Errorf("pages by flags = %v, want branches and leaves", kinds)
			}
		})
	}
}

// TestCheckFreeList flips each bit of the header and of up to 8 entries of the list of free pages, in files with pages of
// different sizes. CheckPages must find each.
func TestCheckFreeList(t *testing.T) {
	for _, pageSize := range []int{1 << 10, 4 << 10, 16 << 10} {
		t.Run(fmt.Sprint(pageSize), func(t *testing.T) {
			path, content := newFile(t, pageSize)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			meta, err := boltfile.NewestMeta(f)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			at := int(meta.Freelist) * pageSize
			free := int(binary.NativeEndian.Uint16(content[at+10:]))
			if free == 0 {
				t.Fatal("the file has no free pages")
			}
			for bit := range 8 * (pageHeaderSize + 8*min(free, 8)) {
				damaged := bytes.Clone(content)
				damaged[at+bit/8] ^= 1 << (bit % 8)
				if err := os.WriteFile(path, damaged, boltfile.FileMode); err != nil {
					t.Fatal(err)
				}
				if done, err := CheckPages(path, func(string) {}); !errors.Is(err, boltfile.ErrDamaged) {
					t.Errorf("CheckPages() with bit %d of byte %d of the list damaged = %+v, %v", bit%8, bit/8, done, err)
				}
			}
		})
	}
}

// checkReported checks that CheckPages reports a damaged byte in the header of a page, with the number of the
// page, and that it does not change the file.
func checkReported(t *testing.T, path string, damaged []byte, page, at int64) {
	t.Helper()
	what := fmt.Sprintf("byte %d of page %d", at, page)
	if err := os.WriteFile(path, damaged, boltfile.FileMode); err != nil {
		t.Fatal(err)
	}
	var reported []string
	done, err := CheckPages(path, func(fault string) { reported = append(reported, fault) })
	ofPage := func(fault string) bool { return strings.HasPrefix(fault, fmt.Sprintf("page %d: ", page)) }
	if !errors.Is(err, boltfile.ErrDamaged) || !slices.ContainsFunc(reported, ofPage) ||
		int64(len(reported)) != done.Faults {
		t.Errorf("CheckPages() with %s damaged = %+v, %v, with reports %q; want a report of the page", what, done, err,
			reported)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(after, damaged) {
		t.Errorf("CheckPages() with %s damaged has changed the file, %v", what, err)
	}
}

// TestCheckSchemas checks that both checks accept a file of an older version, and refuse one of a later
// version without a report of faults.
func TestCheckSchemas(t *testing.T) {
	for version, want := range map[uint32]error{
		boltfile.SchemaVersion: nil, boltfile.SchemaVersion - 1: nil, boltfile.JournaledSchemaVersion: nil,
		boltfile.MaxSchemaVersion + 1: boltfile.ErrSchema,
	} {
		path := filepath.Join(t.TempDir(), "parley.db")
		db, err := boltfile.Open(path, boltfile.ReadTimeout, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte(boltfile.SchemaKey), boltfile.EncodeSchema(version))
		}), db.Close()); err != nil {
			t.Fatal(err)
		}
		for name, check := range map[string]func(string, func(string)) (Checked, error){
			"Check": Check, "CheckPages": CheckPages,
		} {
			if done, err := check(path, func(fault string) { t.Error(fault) }); !errors.Is(err, want) || done.Faults > 0 {
				t.Errorf("%s() of schema %d = %+v, %v, want %v", name, version, done, err, want)
			}
		}
	}
}
