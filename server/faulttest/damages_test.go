package faulttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// pageSize is the page size of bbolt on amd64 and arm64.
const pageSize = 4096

// damage writes a damaged version of a file to path. content is the content of the undamaged file.
type damage func(t *testing.T, path string, content []byte, random *rand.Rand) error

// damages returns the kinds of damage that are tested, by name.
func damages() map[string]damage {
	return map[string]damage{
		"one meta page":           inPages("meta", 1, flipBit),
		"both meta pages":         inPages("meta", 2, flipBit),
		"branch page":             inPages("branch", 1, flipBit),
		"header of a leaf page":   inPages("leaf", 1, flipHeader),
		"leaf page":               inPages("leaf", 1, flipBit),
		"free list":               inPages("freelist", 1, flipBit),
		"header of the free list": inPages("freelist", 1, flipHeader),
		"content of a message":    damageMessage,
		"leaf page of zeros":      inPages("leaf", 1, zero),
		"branch page of zeros":    inPages("branch", 1, zero),
		"two pages swapped":       swapPages,
		"truncated to half":       cutTo(func(pages int) int { return pages / 2 }),
		"truncated to one page":   cutTo(func(int) int { return 1 }),
		"truncated to nothing":    cutTo(func(int) int { return 0 }),
		"garbage":                 garbage,
		"file of another program": anotherProgram,
		"directory": func(_ *testing.T, path string, _ []byte, _ *rand.Rand) error {
			return os.Mkdir(path, 0o700)
		},
		"link": link,
	}
}

// inPages changes n random pages of a kind.
func inPages(kind string, n int, change func(page []byte, random *rand.Rand)) damage {
	return func(t *testing.T, path string, content []byte, random *rand.Rand) error {
		t.Helper()
		pages, err := pagesOf(t, content, kind)
		if err != nil {
			return err
		}
		random.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
		for _, page := range pages[:n] {
			change(content[page*pageSize:][:pageSize], random)
		}
		return os.WriteFile(path, content, 0o600)
	}
}

// pagesOf returns the numbers of a file's pages of a kind, without free ones.
func pagesOf(t *testing.T, content []byte, kind string) (pages []int, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return nil, err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return nil, err
	}
	err = db.View(func(tx *bolt.Tx) error {
		for n := 0; ; {
			page, err := tx.Page(n)
			switch {
			case err != nil:
				return err
			case page == nil:
				return nil
			case page.Type == "free":
				n++
				continue
			case page.Type == kind:
				pages = append(pages, n)
			}
			n += 1 + page.OverflowCount
		}
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	if len(pages) == 0 {
		return nil, fmt.Errorf("the file has no %s page", kind)
	}
	return pages, nil
}

// flipBit flips a random bit in the used part of a page.
func flipBit(page []byte, random *rand.Rand) {
	page[random.IntN(usedBytes(page))] ^= 1 << random.IntN(8)
}

// usedBytes returns the length of the used part of a page. A page has a header of 16 bytes, with its
// kind and its number of elements, then the elements. The last element has the position of its bytes.
func usedBytes(page []byte) int {
	const (
		header            = 16
		branch, leaf      = 1, 2
		meta, freelist    = 4, 16
		element, metaSize = 16, 64
	)
	order := binary.NativeEndian
	n := int(order.Uint16(page[10:]))
	used, kind := header, order.Uint16(page[8:])
	if kind == meta || kind == freelist || n == 0 {
		return min(used+max(metaSize, n*8), pageSize)
	}
	last := page[header+(n-1)*element:]
	switch kind {
	case branch: // position and length of the key, number of the child page
		used += (n-1)*element + int(order.Uint32(last)+order.Uint32(last[4:]))
	case leaf: // flags, position, lengths of key and value
		used += (n-1)*element + int(order.Uint32(last[4:])+order.Uint32(last[8:])+order.Uint32(last[12:]))
	}
	return min(used, pageSize)
}

// flipHeader flips a bit in the header of a page, or in its first element.
func flipHeader(page []byte, random *rand.Rand) { page[random.IntN(32)] ^= 1 << random.IntN(8) }

func zero(page []byte, _ *rand.Rand) { clear(page) }

// damageMessage flips a bit in the content of a message.
func damageMessage(t *testing.T, path string, content []byte, random *rand.Rand) error {
	t.Helper()
	pages, err := pagesOf(t, content, "leaf")
	if err != nil {
		return err
	}
	mark, places := []byte(" step "), []int(nil)
	for _, page := range pages {
		for at := page * pageSize; at < (page+1)*pageSize; at++ {
			if bytes.HasPrefix(content[at:], mark) {
				places = append(places, at)
			}
		}
	}
	content[places[random.IntN(len(places))]+random.IntN(len(mark))] ^= 1 << random.IntN(3)
	return os.WriteFile(path, content, 0o600)
}

func swapPages(t *testing.T, path string, content []byte, random *rand.Rand) error {
	t.Helper()
	leaves, err := pagesOf(t, content, "leaf")
	if err != nil {
		return err
	}
	branches, err := pagesOf(t, content, "branch")
	if err != nil {
		return err
	}
	pages := slices.Concat(leaves, branches)
	random.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	a, b := content[pages[0]*pageSize:][:pageSize], content[pages[1]*pageSize:][:pageSize]
	saved := bytes.Clone(a)
	copy(a, b)
	copy(b, saved)
	return os.WriteFile(path, content, 0o600)
}

// cutTo truncates the file to some of the pages that were ever used.
func cutTo(left func(pages int) int) damage {
	return func(t *testing.T, path string, content []byte, _ *rand.Rand) error {
		t.Helper()
		leaves, err := pagesOf(t, content, "leaf")
		if err != nil {
			return err
		}
		return os.WriteFile(path, content[:left(slices.Max(leaves)+1)*pageSize], 0o600)
	}
}

func garbage(_ *testing.T, path string, content []byte, random *rand.Rand) error {
	for at := 0; at+8 <= len(content); at += 8 {
		binary.NativeEndian.PutUint64(content[at:], random.Uint64())
	}
	return os.WriteFile(path, content, 0o600)
}

// anotherProgram writes a sound bbolt file that is not a store of this service.
func anotherProgram(_ *testing.T, path string, _ []byte, random *rand.Rand) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte("conversations"))
		if err != nil {
			return err
		}
		return b.Put([]byte("key"), binary.NativeEndian.AppendUint64(nil, random.Uint64()))
	})
	return errors.Join(err, db.Close())
}

// link replaces the file with a symbolic link to it.
func link(t *testing.T, path string, content []byte, _ *rand.Rand) error {
	t.Helper()
	target := filepath.Join(t.TempDir(), fileName)
	return errors.Join(os.WriteFile(target, content, 0o600), os.Symlink(target, path))
}
