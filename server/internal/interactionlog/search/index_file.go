package search

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// An index lists the lines of a file by the hash of their conversation id. It has a header and pages of
// entries, sorted by hash and offset. A checksum covers each page and its number:
//
//	header  16 magic, 8 size, 8 modified, 8 changed, 8 inode of the file, 8 number of entries, 4 checksum
//	page    255 × (8 hash, 8 offset), zeros after the last entry, 12 zeros, 4 checksum
//
// Hashes collide and files change, so readers parse the lines that the entries point at.
const (
	indexMagic  = "parley session 1"
	headerBytes = len(indexMagic) + 5*8 + 4
	pageBytes   = 4096
	entryBytes  = 16
	pageEntries = pageBytes/entryBytes - 1
	// maxIndexEntries limits the memory for building an index to 16 MiB.
	maxIndexEntries = 1 << 20
	// tooMany is the number of entries in the header of an index without entries, because the file
	// has more than maxIndexEntries.
	tooMany = math.MaxUint64
	// unreadable is the hash of lines that cannot be parsed.
	unreadable = 0
	// maxIndexFound is the maximum number of lines that find returns.
	maxIndexFound = 2048
)

// errIndex reports that an index is damaged or was not built from the file as it is.
var errIndex = errors.New("index is damaged or belongs to another file")

type indexEntry struct {
	hash   uint64
	offset int64
}

func (e indexEntry) compare(other indexEntry) int {
	return cmp.Or(cmp.Compare(e.hash, other.hash), cmp.Compare(e.offset, other.offset))
}

func sortEntries(entries []indexEntry) { slices.SortFunc(entries, indexEntry.compare) }

// hashConversation returns the FNV-1a hash of a conversation id. It never returns unreadable.
func hashConversation(id []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range id {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return max(h, unreadable+1)
}

// indexChecksum returns the checksum of a page with its number, or of the header with number -1.
func indexChecksum(b []byte, page int64) uint32 {
	seed := binary.BigEndian.AppendUint64(nil, uint64(page))
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(seed, table), table, b)
}

// writeIndex writes the index of a file. If entries is nil, the file has too many.
func writeIndex(w io.Writer, of dayfile.Fingerprint, entries []indexEntry) error {
	out := bufio.NewWriterSize(w, 64<<10)
	count := uint64(len(entries))
	if entries == nil {
		count = tooMany
	}
	header := appendHeader(nil, of, count)
	_, err := out.Write(binary.BigEndian.AppendUint32(header, indexChecksum(header, -1)))
	page := make([]byte, 0, pageBytes)
	for number := int64(0); err == nil && len(entries) > 0; number++ {
		page = page[:0]
		n := min(len(entries), pageEntries)
		for _, e := range entries[:n] {
			page = binary.BigEndian.AppendUint64(page, e.hash)
			page = binary.BigEndian.AppendUint64(page, uint64(e.offset))
		}
		entries = entries[n:]
		used := len(page)
		page = page[:pageBytes-4]
		clear(page[used:])
		_, err = out.Write(binary.BigEndian.AppendUint32(page, indexChecksum(page, number)))
	}
	return cmp.Or(err, out.Flush())
}

func appendHeader(b []byte, of dayfile.Fingerprint, count uint64) []byte {
	b = append(b, indexMagic...)
	for _, n := range [...]uint64{uint64(of.Size), uint64(of.Modified), uint64(of.Changed), of.Inode, count} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// index is an open index. It is for one goroutine.
type index struct {
	file interface {
		io.ReaderAt
		io.Closer
	}
	count      int64
	oversize   bool // the file has too many entries, and the index has none
	page       [pageBytes]byte
	cachedPage int64 // number of the page in page, plus 1; 0: none
}

func (x *index) close() { _ = x.file.Close() }

// readHeader checks that the index was built from a file as it is.
func (x *index) readHeader(of dayfile.Fingerprint) error {
	b := x.page[:headerBytes]
	if _, err := x.file.ReadAt(b, 0); err != nil {
		return errIndex
	}
	body, sum := b[:headerBytes-4], binary.BigEndian.Uint32(b[headerBytes-4:])
	count := binary.BigEndian.Uint64(body[len(body)-8:])
	if sum != indexChecksum(body, -1) || !bytes.Equal(body, appendHeader(nil, of, count)) {
		return errIndex
	}
	if x.oversize = count == tooMany; !x.oversize {
		x.count = int64(count)
	}
	return nil
}

// entry reads an entry by its number.
func (x *index) entry(i int64) (indexEntry, error) {
	number := i / pageEntries
	if x.cachedPage != number+1 {
		x.cachedPage = 0
		if _, err := x.file.ReadAt(x.page[:], int64(headerBytes)+number*pageBytes); err != nil {
			return indexEntry{}, errIndex
		}
		body, sum := x.page[:pageBytes-4], binary.BigEndian.Uint32(x.page[pageBytes-4:])
		if sum != indexChecksum(body, number) {
			return indexEntry{}, errIndex
		}
		x.cachedPage = number + 1
	}
	b := x.page[i%pageEntries*entryBytes:]
	return indexEntry{binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

// search returns the number of the first entry that is not less than e.
func (x *index) search(e indexEntry) (int64, error) {
	low, high := int64(0), x.count
	for low < high {
		middle := low + (high-low)/2
		found, err := x.entry(middle)
		if err != nil {
			return 0, err
		}
		if found.compare(e) < 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// find returns the offsets of lines that may belong to a conversation, from first to before end. They
// include lines that cannot be parsed. find returns at most maxIndexFound, the nearest in the direction,
// in that order. more is true if there are others.
func (x *index) find(conversation string, first, end int64, backward bool) (offsets []int64, more bool, err error) {
	for _, hash := range [...]uint64{unreadable, hashConversation([]byte(conversation))} {
		from, err := x.search(indexEntry{hash, first})
		if err != nil {
			return nil, false, err
		}
		to, err := x.search(indexEntry{hash, end})
		if err != nil {
			return nil, false, err
		}
		if backward {
			from = max(from, to-maxIndexFound-1)
		} else {
			to = min(to, from+maxIndexFound+1)
		}
		for i := from; i < to; i++ {
			e, err := x.entry(i)
			if err != nil {
				return nil, false, err
			}
			offsets = append(offsets, e.offset)
		}
	}
	slices.Sort(offsets)
	if backward {
		slices.Reverse(offsets)
	}
	if more = len(offsets) > maxIndexFound; more {
		offsets = offsets[:maxIndexFound]
	}
	return offsets, more, nil
}
