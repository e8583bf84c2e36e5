package fsck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// Layout of a page of bbolt: a header of 16 bytes with the page's number, its flags, the count of
// its elements, and the number of additional pages that belong to it. Elements of 16 bytes follow.
// Each has the offsets of its key and value, relative to the element. The value of a bucket is its
// root page and its sequence. A small bucket has no root page: its only page follows its header.
const (
	pageHeaderSize, elementSize, bucketHeaderSize = 16, 16, 16

	branchFlag, leafFlag = 0x01, 0x02 // flags of a page
	bucketElement        = 0x01       // flag of an element
)

// checkElements checks that keys and values lie within their pages. bbolt does not check that, not
// even in Check: with a damaged length it copies as many bytes as the length says, or in a small
// bucket reads outside of the file's memory, which ends the process. The meta pages must be sound.
func (c *checker) checkElements(path string) error {
	f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	meta, err := boltfile.NewestMeta(f)
	if err == nil {
		e := &elementChecker{checker: c, file: f, meta: meta, seen: make([]bool, meta.Pages)}
		if err = e.page(meta.Root); err == nil && c.Faults == 0 {
			err = e.checkFreeList()
		}
	}
	return errors.Join(err, f.Close())
}

// elementChecker walks the pages of one state of a file. Its methods return only errors of the file
// system and report faults.
type elementChecker struct {
	*checker

	file *os.File
	meta boltfile.MetaPage
	seen []bool // by page number, so that the walk ends even if pages form a cycle
}

// page checks a page and all pages below it.
func (e *elementChecker) page(number uint64) error {
	if number < 2 || number >= e.meta.Pages || e.seen[number] {
		e.addFault("page %d: it is in use twice or outside of the file", number)
		return nil
	}
	var header [pageHeaderSize]byte
	at := int64(number) * e.meta.PageSize
	if err := e.read(header[:], at); err != nil {
		return err
	}
	if says := binary.NativeEndian.Uint64(header[:]); says != number {
		e.addFault("page %d: its header says that it is page %d", number, says)
		return nil
	}
	pages := 1 + uint64(binary.NativeEndian.Uint32(header[12:]))
	if number+pages > e.meta.Pages {
		e.addFault("page %d: its header says that it has %d pages, which is beyond the end of the file", number, pages)
		return nil
	}
	for next := number; next < number+pages; next++ {
		if e.seen[next] {
			e.addFault("page %d: page %d, which belongs to it according to its header, is in use twice", number, next)
			return nil
		}
		e.seen[next] = true
	}
	return e.checkElementsAt(number, at, int64(pages)*e.meta.PageSize)
}

// checkFreeList checks that no page in use is in the list of free pages. bbolt checks only the
// first page of those that belong together.
func (e *elementChecker) checkFreeList() error {
	const manyFree = math.MaxUint16
	if e.meta.Freelist == boltfile.NoFreeList {
		return nil
	}
	var header [pageHeaderSize + 8]byte
	at := int64(e.meta.Freelist) * e.meta.PageSize
	if err := e.read(header[:], at); err != nil {
		return err
	}
	count := uint64(binary.NativeEndian.Uint16(header[10:]))
	at += pageHeaderSize
	if count == manyFree { // In this case the first entry is the count.
		count = binary.NativeEndian.Uint64(header[pageHeaderSize:])
		at += 8
	}
	if count > e.meta.Pages {
		e.addFault("page %d: its list has %d free pages, but the file has %d pages", e.meta.Freelist, count, e.meta.Pages)
		return nil
	}
	list := make([]byte, 8*count)
	if err := e.read(list, at); err != nil {
		return err
	}
	for ; len(list) > 0; list = list[8:] {
		if number := binary.NativeEndian.Uint64(list); number < e.meta.Pages && e.seen[number] {
			e.addFault("page %d: it is in use and in the list of free pages", number)
		}
	}
	return nil
}

// checkElementsAt checks the elements of the page at an offset in the file. The page has size
// bytes. The number is used in reports; for a small bucket it is that of the page that contains it.
func (e *elementChecker) checkElementsAt(number uint64, at, size int64) error {
	if size < pageHeaderSize {
		e.addFault("page %d: a bucket in it is too short", number)
		return nil
	}
	var header [pageHeaderSize]byte
	if err := e.read(header[:], at); err != nil {
		return err
	}
	flags, count := binary.NativeEndian.Uint16(header[8:]), int64(binary.NativeEndian.Uint16(header[10:]))
	branch := flags == branchFlag
	if !branch && flags != leafFlag || branch && count == 0 {
		e.addFault("page %d: it is neither a leaf nor a branch, its flags are %#x, with %d elements", number, flags, count)
		return nil
	}
	if pageHeaderSize+count*elementSize > size {
		e.addFault("page %d: it is too small for its %d elements", number, count)
		return nil
	}
	table := make([]byte, count*elementSize)
	if err := e.read(table, at+pageHeaderSize); err != nil {
		return err
	}
	for i := range count {
		here := pageHeaderSize + i*elementSize
		field := func(n int64) int64 { return int64(binary.NativeEndian.Uint32(table[i*elementSize+4*n:])) }
		flags, place, length := field(0), field(1), field(2)+field(3)
		if branch {
			flags, place, length = 0, field(0), field(1)
		}
		if place < (count-i)*elementSize || here+place+length > size {
			e.addFault("page %d: element %d lies outside of the page", number, i)
			continue
		}
		var err error
		switch {
		case branch:
			err = e.page(binary.NativeEndian.Uint64(table[i*elementSize+8:]))
		case flags&bucketElement != 0:
			err = e.bucket(number, at+here+place+field(2), field(3))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks the pages of a bucket. Its value is at an offset in the file and has size bytes.
func (e *elementChecker) bucket(number uint64, at, size int64) error {
	if size < bucketHeaderSize {
		e.addFault("page %d: a bucket in it is too short", number)
		return nil
	}
	var root [8]byte
	if err := e.read(root[:], at); err != nil {
		return err
	}
	if below := binary.NativeEndian.Uint64(root[:]); below != 0 {
		return e.page(below)
	}
	return e.checkElementsAt(number, at+bucketHeaderSize, size-bucketHeaderSize)
}

// read fills into from an offset in the file. If the file ends before, the error is ErrDamaged.
func (e *elementChecker) read(into []byte, at int64) error {
	_, err := e.file.ReadAt(into, at)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it is truncated: %s", boltfile.ErrDamaged, boltfile.Remedy)
	}
	return err
}
