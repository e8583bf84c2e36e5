package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
	"syscall"
)

// checkFile looks at a file before bbolt does, which takes an empty one for new and dies of
// one that is too short. The file must be of the user of this process; checkFile takes from
// others the right to read it.
func checkFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if err := checkKind(info); err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: it is of user %d, and this process runs as user %d: run it as that user, or give the file to this one with chown",
			ErrOwner, s.Uid, os.Geteuid())
	}
	f, err := openExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info.Mode().Perm() != fileMode {
		if err := f.Chmod(fileMode); err != nil {
			return err
		}
	}
	return checkMetas(f)
}

// checkKind finds links, directories and the like.
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

// checkMetas finds the damage that shows without a look beyond the meta pages.
func checkMetas(f *os.File) error {
	cause, err := findDamage(f)
	if err != nil || cause == "" {
		return err
	}
	// Somebody who writes to it at this moment may show us a page in between.
	if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrDamaged, cause, remedy)
}

// findDamage says in words what is wrong with a file, as far as its two meta pages tell;
// nothing when it is sound.
func findDamage(f *os.File) (cause string, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() == 0 {
		return "it is empty", nil
	}
	newest, err := newestMeta(f)
	if err != nil {
		return "", err
	}
	switch {
	case !newest.valid:
		return "neither of its two meta pages is whole", nil
	case newest.pages > uint64(info.Size()/newest.pageSize):
		return fmt.Sprintf("it is cut off: %d bytes of %d pages of %d", info.Size(), newest.pages, newest.pageSize), nil
	case newest.root >= newest.pages || newest.freelist >= newest.pages && newest.freelist != noFreeList:
		return "its meta page leads outside of it", nil
	}
	return "", nil
}

// noFreeList stands for the page of a list that was not written, which bbolt then makes anew.
const noFreeList = math.MaxUint64

// metaPage is what bbolt keeps in each of the first two pages; the newer one holds.
type metaPage struct {
	valid                              bool
	pageSize                           int64
	root, freelist, pages, transaction uint64
}

// newestMeta returns the meta page that holds; one that is not valid if neither is whole.
func newestMeta(f *os.File) (metaPage, error) {
	first, err := readMeta(f, 0)
	if err != nil {
		return metaPage{}, err
	}
	newest := first
	// The second page begins where the first one ends, which it does not tell if damaged.
	for size := int64(1 << 10); size <= 16<<20; size <<= 1 {
		second, err := readMeta(f, size)
		if err != nil {
			return metaPage{}, err
		}
		if size == second.pageSize && (!first.valid || size == first.pageSize && second.transaction > first.transaction) {
			newest = second
		}
	}
	return newest, nil
}

// readMeta reads a meta page: a page header of 16 bytes, then magic, version, page size and
// flags of 4 bytes each, then root, sequence, free list, high-water mark, transaction
// and FNV-1a of all that of 8 bytes each, as this machine orders bytes.
func readMeta(f *os.File, at int64) (metaPage, error) {
	const header, sumAt, size = 16, 56, 64
	var page [header + size]byte
	if _, err := f.ReadAt(page[:], at); errors.Is(err, io.EOF) {
		return metaPage{}, nil
	} else if err != nil {
		return metaPage{}, err
	}
	b, order := page[header:], binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:sumAt])
	m := metaPage{
		pageSize: int64(order.Uint32(b[8:])), root: order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		pages: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}
	const magic, version = 0xED0CDAED, 2
	m.valid = order.Uint32(b) == magic && order.Uint32(b[4:]) == version && sum.Sum64() == order.Uint64(b[sumAt:]) && m.pageSize > 0
	if !m.valid {
		return metaPage{}, nil
	}
	return m, nil
}
