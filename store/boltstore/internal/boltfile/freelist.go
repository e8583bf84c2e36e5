package boltfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// findFreeListDamage describes damage in the list of free pages that can be found without other pages. The cause is
// empty if there is none. Only a walk over all pages shows whether those in the list are free.
//
// bbolt checks only the kind of the page. When it writes another list, it frees the pages of this one. If the header
// says that there are more of them than there are, bbolt then frees and overwrites others, which are in use.
//
// The page has a header of 16 bytes with its number, its flags, the count of free pages, and how many more pages belong
// to it. The numbers of the free pages follow in ascending order, of 8 bytes each. If the count does not fit into its
// 2 bytes, it comes first instead.
func (m MetaPage) findFreeListDamage(f io.ReaderAt) (cause string, err error) {
	if m.Freelist == NoFreeList {
		return "", nil
	}
	const header, flag, entry = 16, 0x10, 8
	b, order := make([]byte, header+entry), binary.NativeEndian
	at := int64(m.Freelist) * m.PageSize
	if _, err := f.ReadAt(b, at); err != nil {
		return "", err
	}
	number, flags, more := order.Uint64(b), order.Uint16(b[8:]), uint64(order.Uint32(b[12:]))
	size, count := uint64(header), uint64(order.Uint16(b[10:]))
	if count == math.MaxUint16 {
		size, count = header+entry, order.Uint64(b[header:])
	}
	damaged := fmt.Sprintf("page %d is not a valid list of free pages", m.Freelist)
	if number != m.Freelist || flags != flag || count > m.Pages || more >= m.Pages-m.Freelist {
		return damaged, nil
	}
	// bbolt allocates the pages for the list while those which it takes for that are still in the list.
	needs := func(count uint64) uint64 {
		if count >= math.MaxUint16 {
			count++
		}
		return (header + entry*count) / uint64(m.PageSize)
	}
	if more != needs(count) && more != needs(count+more+1) {
		return damaged, nil
	}
	list := make([]byte, entry*count)
	if _, err := f.ReadAt(list, at+int64(size)); err != nil {
		return "", err
	}
	for last := uint64(1); len(list) > 0; list = list[entry:] {
		free := order.Uint64(list)
		if free <= last || free >= m.Pages {
			return damaged, nil
		}
		last = free
	}
	return "", nil
}
