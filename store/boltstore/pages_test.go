package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// leafPageFlag is the flag of a leaf page of bbolt.
const leafPageFlag = 0x02

// flipLeaf changes one bit in the flags of the leaf page that contains mark.
func flipLeaf(t *testing.T, path, mark string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(os.Getpagesize())
	for _, number := range usedPages(t, path) {
		page := file[number*size:]
		flags, more := binary.NativeEndian.Uint16(page[8:]), uint64(binary.NativeEndian.Uint32(page[12:]))
		if flags&^0x40 == leafPageFlag && bytes.Contains(page[:(1+more)*size], []byte(mark)) {
			binary.NativeEndian.PutUint16(page[8:], flags^0x40)
			if err := os.WriteFile(path, file, boltfile.FileMode); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no page contains %q", mark)
}

// usedPages returns the numbers of the used pages. Of contiguous pages that belong together it
// returns the first.
func usedPages(t *testing.T, path string) []uint64 {
	t.Helper()
	db, err := bolt.Open(path, boltfile.FileMode, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var used []uint64
	if err := db.View(func(tx *bolt.Tx) error {
		for number := 2; ; {
			info, err := tx.Page(number)
			if err != nil || info == nil {
				return err
			}
			if info.Type == "free" {
				number++
				continue
			}
			used = append(used, uint64(number))
			number += 1 + info.OverflowCount
		}
	}); err != nil {
		t.Fatal(err)
	}
	return used
}

// markedText returns a text that names its conversation and fills a leaf page.
func markedText(id string) string { return "mark of " + id + strings.Repeat(" word", 500) }

// TestDamagedPage flips a bit of a leaf page that the check at the start did not reach. Only the operations
// that read the page fail.
func TestDamagedPage(t *testing.T) {
	path := newPath(t) // Created outside of the bubble.
	s := open(t, path, store.Options{MaxMessages: 1})
	ids := []string{}
	for i := range 12 {
		ids = append(ids, fmt.Sprint("c", 10+i))
		appendTo(t, s, ids[i], markedText(ids[i]))
	}
	s.Close()
	flipLeaf(t, path, "mark of c15")

	synctest.Test(t, func(t *testing.T) {
		s := open(t, path, store.Options{MaxMessages: 1})
		s.options.OnFailure = func(err error) { t.Errorf("OnFailure was called with %v", err) }
		append1 := func(id string) error {
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: text(markedText(id))})
			return err
		}
		remove := func(id string) error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id})
		}
		_, errRead := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c15", Newest: -1})
		for i, err := range []error{errRead, append1("c15"), append1("c15"), remove("c15")} {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("call %d = %.99v, want ErrCorrupt", i, err)
			}
		}

		// In this batch, c15 is in the damaged page. The commit merges it with the page of the last
		// conversation beside it that is deleted.
		b := &testWriter{writer: s.writer, t: t}
		release, held := b.block()
		start := func(do func() error) pending {
			a := make(pending, 1)
			go func() { a <- do() }()
			synctest.Wait()
			return a
		}
		good := []pending{held, start(func() error { return append1("c20") })}
		damaged := []pending{start(func() error { return append1("c15") })}
		good = append(good, start(func() error { return append1("new") }))
		beside := []pending{}
		for _, id := range []string{"c13", "c14", "c16", "c17"} {
			beside = append(beside, start(func() error { return remove(id) }))
		}
		release()
		for i, a := range good {
			if err := <-a; err != nil {
				t.Errorf("write %d to another page = %.99v", i, err)
			}
		}
		for _, a := range damaged {
			if err := <-a; !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("write to the page = %.99v, want ErrCorrupt", err)
			}
		}
		failed := 0
		for i, a := range beside {
			if err := <-a; errors.Is(err, store.ErrCorrupt) {
				failed++
			} else if err != nil {
				t.Errorf("delete %d beside the page = %.99v", i, err)
			}
		}
		if failed == 0 || failed == len(beside) {
			t.Errorf("%d of %d deletes failed at the commit, want some", failed, len(beside))
		}
		if err := append1("newer"); err != nil {
			t.Errorf("Append afterwards = %.99v", err)
		}
	})

	flipLeaf(t, path, "mark of c15")
	s = open(t, path, store.Options{MaxMessages: 1})
	wantConsistent(t, s)
	s.Close()
	if done, err := Check(path, func(fault string) { t.Error(fault) }); err != nil {
		t.Errorf("Check = %+v, %v", done, err)
	}
}

// flipOverflow changes one bit in the length of a leaf page, so that the page claims a free page
// and the used ones before it. It returns the conversation in that leaf, and a function that undoes
// the change.
func flipOverflow(t *testing.T, path string, ids []string) (id string, undo func()) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(os.Getpagesize())
	used := usedPages(t, path)
	for i, number := range used {
		page := file[number*size:]
		more := binary.NativeEndian.Uint32(page[12:])
		at := slices.IndexFunc(ids, func(id string) bool {
			return bytes.Contains(page[:(1+uint64(more))*size], []byte("mark of "+id))
		})
		if binary.NativeEndian.Uint16(page[8:]) != leafPageFlag || at < 0 {
			continue
		}
		for bit := range 10 {
			end := number + uint64(more^1<<bit)
			taken := slices.ContainsFunc(used[i+1:], func(n uint64) bool { return n <= end })
			free := end > number && !slices.Contains(used, end) && end*size < uint64(len(file))
			if !taken || !free {
				continue
			}
			offset := int64(number*size + 12)
			write := func(length uint32) {
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, length), offset); err != nil {
					t.Fatal(err)
				}
			}
			write(more ^ 1<<bit)
			return ids[at], func() { write(more) }
		}
	}
	t.Fatal("no leaf page is before a free page")
	return "", nil
}

// TestDamagedLength flips a bit in the length of a page, so that the writer would free pages in
// use. The store must fail and lose nothing else.
func TestDamagedLength(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{MaxMessages: 1})
	ids := []string{}
	for i := range 12 {
		ids = append(ids, fmt.Sprint("c", 10+i))
		appendTo(t, s, ids[i], markedText(ids[i]))
	}
	for i := range 12 {
		appendTo(t, s, fmt.Sprint("deleted ", i), markedText("deleted"))
	}
	for i := range 12 { // Leaves free pages after those in use.
		if err := s.Delete(t.Context(), &store.Delete{
			Tenant: "acme", ConversationID: fmt.Sprint("deleted ", i),
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	id, undo := flipOverflow(t, path, ids)

	var failures []error
	s, err := Open(path, Options{
		Options: store.Options{MaxMessages: 1}, OnFailure: func(err error) { failures = append(failures, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range append([]string{id}, ids...) {
		_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: text(markedText(id))})
		if !errors.Is(err, store.ErrFailed) || errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Append to %s = %.99v, want ErrFailed", id, err)
		}
	}
	if len(failures) != 1 {
		t.Errorf("OnFailure was called with %v, want one error", failures)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	undo()
	s = open(t, path, store.Options{MaxMessages: 1})
	for _, id := range ids {
		if _, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1}); err != nil {
			t.Errorf("Read of %s after the repair = %v", id, err)
		}
	}
	wantConsistent(t, s)
	s.Close()
	wantSound(t, path)
}

// TestSweepDamagedPage sweeps conversations beside one whose page cannot be read. All are removed
// except those whose page would be merged with the damaged one.
func TestSweepDamagedPage(t *testing.T) {
	path, c := newPath(t), newClock()
	o := store.Options{Now: c.Now, TTL: time.Hour, MaxMessages: 1}
	s := open(t, path, o)
	for i := range 40 {
		appendTo(t, s, fmt.Sprint("c", 10+i), markedText(fmt.Sprint("c", 10+i)))
	}
	appendTo(t, s, "ephemeral", "hello")
	c.advance(time.Minute)
	hold(t, s, 0, "ephemeral")
	release(t, s, time.Hour, "ephemeral")
	s.Close()
	flipLeaf(t, path, "mark of c15")
	c.advance(2 * time.Hour)
	s = open(t, path, o)
	for range 3 {
		if _, err := s.Sweep(t.Context(), 1000); err != nil && !errors.Is(err, store.ErrCorrupt) {
			t.Fatal(err)
		}
	}
	if more, err := s.Sweep(t.Context(), 1000); more || err != nil {
		t.Errorf("Sweep with only damage left = %v, %v, want false", more, err)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations > 6 {
		t.Errorf("Stats = %+v, %v, want 6 conversations at most, in the page and beside it", stats, err)
	}
	if n := s.tally.ephemeralCounts["acme"]; n != 0 {
		t.Errorf("%d ids are ephemeral, want none", n)
	}
	s.Close()
	flipLeaf(t, path, "mark of c15") // Repairs the page.
	s = open(t, path, o)
	c.advance(deferPeriod)
	sweep(t, s)
	if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 0 {
		t.Errorf("Stats after the repair = %+v, %v, want no conversation", stats, err)
	}
	wantConsistent(t, s)
}

// TestSweepDamagedExpiry damages a page of expiry. The entries before it must be swept.
func TestSweepDamagedExpiry(t *testing.T) {
	path, c := newPath(t), newClock()
	o := store.Options{Now: c.Now, TTL: time.Hour}
	s := open(t, path, o)
	for i := range 300 {
		appendTo(t, s, fmt.Sprint("c", i), "hello")
	}
	var root uint64
	_ = s.db.View(func(tx *bolt.Tx) error {
		root = uint64(tx.Bucket([]byte(layout.ExpiryBucket)).Root())
		return nil
	})
	s.Close()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(os.Getpagesize())
	children := uint64(binary.NativeEndian.Uint16(file[root*size+10:]))
	child := binary.NativeEndian.Uint64(file[root*size+16+16*(children-1)+8:])
	file[child*size+8] ^= 0x40
	if err := os.WriteFile(path, file, boltfile.FileMode); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Hour)
	s = open(t, path, o)
	if _, err := s.Sweep(t.Context(), 1000); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Sweep = %.99v, want ErrCorrupt", err)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations > 150 {
		t.Errorf("Stats = %+v, %v, want half of 300 conversations at most", stats, err)
	}
}

// TestPurgeDamagedPage purges a tenant with a page that cannot be read. The conversations before it
// must be removed.
func TestPurgeDamagedPage(t *testing.T) {
	path, c := newPath(t), newClock()
	o := store.Options{Now: c.Now, MaxMessages: 1}
	s := open(t, path, o)
	for i := range 40 {
		appendTo(t, s, fmt.Sprint("c", 10+i), markedText(fmt.Sprint("c", 10+i)))
		c.advance(time.Millisecond)
	}
	s.Close()
	flipLeaf(t, path, "mark of c40")
	s = open(t, path, o)
	purged, err := s.Purge(t.Context(), &store.Purge{Tenant: "acme"})
	if !errors.Is(err, store.ErrCorrupt) || purged.Count < 20 {
		t.Errorf("Purge = %+v, %.99v, want 20 conversations at least, and ErrCorrupt", purged, err)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Conversations != 40-purged.Count {
		t.Errorf("Stats = %+v, %v, want all except the purged ones", stats, err)
	}
}
