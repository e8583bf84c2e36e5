package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
)

// CheckFile checks a file before bbolt opens it, because bbolt initializes an empty file and
// crashes on one that is too short. The file must belong to the user of this process. CheckFile
// removes the access of other users.
func CheckFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if err := checkKind(info); err != nil {
		return err
	}
	if owner, known := OwnerOf(info); known && owner != os.Geteuid() {
		return fmt.Errorf("%w: it is of user %d, and this process runs as user %d: "+
			"run it as that user, or give the file to this one with chown",
			ErrOwner, owner, os.Geteuid())
	}
	f, err := OpenExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info.Mode().Perm() != FileMode {
		if err := f.Chmod(FileMode); err != nil {
			return err
		}
	}
	return checkMetas(f)
}

// CheckReadOnly checks a file as CheckFile does, but accepts a file of any user and does not change
// its mode.
func CheckReadOnly(path string) (os.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := checkKind(info); err != nil {
		return nil, err
	}
	f, err := OpenExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return info, errors.Join(checkMetas(f), f.Close())
}

// checkKind returns an error for links, directories and other files that are not regular.
func checkKind(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		kind := "something else"
		switch info.Mode().Type() {
		case fs.ModeDir:
			kind = "a directory"
		case fs.ModeSymlink:
			kind = "a symbolic link"
		case fs.ModeNamedPipe:
			kind = "a pipe"
		}
		return fmt.Errorf("%w: it is not a regular file but %s: use another file", ErrDamaged, kind)
	}
	return nil
}

// checkMetas returns an error for damage that the meta pages show.
func checkMetas(f *os.File) error {
	cause, err := findDamage(f)
	if err != nil || cause == "" {
		return err
	}
	// If another process is writing to the file, the read may have seen a partly written page.
	if locked, err := LockShared(f); err == nil && !locked {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrDamaged, cause, Remedy)
}

// findDamage describes the damage that the two meta pages of a file show. The cause is empty if
// they are sound.
func findDamage(f *os.File) (cause string, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() == 0 {
		return "it is empty", nil
	}
	newest, err := NewestMeta(f)
	if err != nil {
		return "", err
	}
	switch {
	case !newest.valid:
		return "both of its meta pages are invalid", nil
	case newest.Pages > uint64(info.Size()/newest.PageSize):
		return fmt.Sprintf("it is truncated: it has %d bytes, but %d pages of %d bytes", info.Size(), newest.Pages,
			newest.PageSize), nil
	case newest.Root >= newest.Pages || newest.Freelist >= newest.Pages && newest.Freelist != NoFreeList:
		return "its meta page refers to a page outside of it", nil
	}
	return newest.findFreeListDamage(f)
}

// NoFreeList is the page number of a free list that was not written. bbolt builds the list when it
// opens the file.
const NoFreeList = math.MaxUint64

// MetaPage is the content of one of the first two pages. The newer one is current.
type MetaPage struct {
	valid                              bool
	PageSize                           int64
	Root, Freelist, Pages, transaction uint64
}

// NewestMeta returns the current meta page. If both are damaged, its valid is false.
func NewestMeta(f *os.File) (MetaPage, error) {
	first, err := readMeta(f, 0)
	if err != nil {
		return MetaPage{}, err
	}
	newest := first
	// The second page follows the first one, whose size is unknown if the first one is damaged.
	for size := int64(1 << 10); size <= 16<<20; size <<= 1 {
		second, err := readMeta(f, size)
		if err != nil {
			return MetaPage{}, err
		}
		if size == second.PageSize && (!first.valid || size == first.PageSize && second.transaction > first.transaction) {
			newest = second
		}
	}
	return newest, nil
}

// readMeta reads the meta page at an offset: a page header of 16 bytes, then magic, version, page
// size and flags of 4 bytes each, then root, sequence, free list, high-water mark, transaction and
// the FNV-1a sum of these fields of 8 bytes each, in the byte order of this machine.
func readMeta(f *os.File, at int64) (MetaPage, error) {
	const header, sumAt, size = 16, 56, 64
	var page [header + size]byte
	if _, err := f.ReadAt(page[:], at); errors.Is(err, io.EOF) {
		return MetaPage{}, nil
	} else if err != nil {
		return MetaPage{}, err
	}
	b, order := page[header:], binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:sumAt])
	m := MetaPage{
		PageSize: int64(order.Uint32(b[8:])), Root: order.Uint64(b[16:]), Freelist: order.Uint64(b[32:]),
		Pages: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}
	const magic, version = 0xED0CDAED, 2
	m.valid = order.Uint32(b) == magic && order.Uint32(b[4:]) == version && sum.Sum64() == order.Uint64(b[sumAt:]) &&
		m.PageSize > 0
	if !m.valid {
		return MetaPage{}, nil
	}
	return m, nil
}
