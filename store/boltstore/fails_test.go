package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/parleyhq/parley/store"
)

func TestWriterFails(t *testing.T) {
	for name, fail := range map[string]func(*bench, *txn) error{
		"commit": func(b *bench, x *txn) error {
			b.file.Close()
			return put("key")(x)
		},
		"put": func(_ *bench, x *txn) error { return put("")(x) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() // Not of the bubble.
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, dir, limits{operations: 100, bytes: 100, batch: 3, batchBytes: 100})
				release, _ := b.hold()
				answers := []answer{
					b.start(t.Context(), 1, put("before")),
					b.start(t.Context(), 1, func(x *txn) error { return fail(b, x) }),
					b.start(t.Context(), 1, put("after")),
					b.start(t.Context(), 1, put("in the next batch")),
				}
				release()
				for i, a := range answers {
					if err := <-a; !errors.Is(err, store.ErrFailed) {
						t.Errorf("operation %d: %v, want ErrFailed", i, err)
					}
				}
				if err := b.do(t.Context(), 1, put("late")); !errors.Is(err, store.ErrFailed) {
					t.Errorf("%v, want ErrFailed", err)
				}
				if len(b.failed) != 1 || !errors.Is(b.failed[0], store.ErrFailed) || len(b.commits) != 0 {
					t.Errorf("told of %v and of %d commits, want one failure", b.failed, len(b.commits))
				}
				b.close()
				if err := b.do(t.Context(), 1, put("later")); !errors.Is(err, store.ErrClosed) {
					t.Errorf("%v, want ErrClosed", err)
				}
			})
		})
	}
}

// TestWriterFailsWhileClosing closes the writer, which then fails to commit what was begun.
func TestWriterFailsWhileClosing(t *testing.T) {
	dir := t.TempDir() // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dir, wide)
		gate := make(chan struct{})
		begun := b.start(t.Context(), 1, func(x *txn) error {
			<-gate
			return put("")(x)
		})
		go b.close()
		synctest.Wait()
		close(gate)
		if err := <-begun; !errors.Is(err, store.ErrFailed) {
			t.Errorf("%v, want ErrFailed", err)
		}
		if err := b.do(t.Context(), 1, put("late")); !errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}

// TestWriterPanics runs operations that panic before or after they have written, in batches with others.
func TestWriterPanics(t *testing.T) {
	dir := t.TempDir() // not in the bubble
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dir, wide)
		release, held := b.hold()
		cause := "page 7: unexpected page type"
		unwritten := func(*txn) error { panic(cause) }
		written := func(x *txn) error {
			x.put(x.turns, []byte("taken back"), nil)
			panic(cause)
		}
		answers := []answer{
			b.start(t.Context(), 1, put("a")),
			b.start(t.Context(), 1, unwritten),
			b.start(t.Context(), 1, put("b")),
			b.start(t.Context(), 1, written),
			b.start(t.Context(), 1, put("c")),
			b.start(t.Context(), 1, written),
		}
		release()
		for i, a := range answers {
			if err := <-a; errors.Is(err, store.ErrCorrupt) != (i%2 == 1) || errors.Is(err, store.ErrFailed) {
				t.Errorf("operation %d: %v", i, err)
			}
		}
		for name, apply := range map[string]func(*txn) error{"unwritten": unwritten, "written": written} {
			if err := b.do(t.Context(), 1, apply); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("%s, alone: %v, want ErrCorrupt", name, err)
			}
		}
		if err := errors.Join(<-held, b.do(t.Context(), 1, put("d"))); err != nil {
			t.Error(err)
		}
		if got, want := b.written(), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) || len(b.failed) > 0 {
			t.Errorf("written = %v, want %v; failures %v", got, want, b.failed)
		}
	})
}

// TestWriterNoSpace has operations that do not fit beside others.
func TestWriterNoSpace(t *testing.T) {
	dir := t.TempDir() // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dir, wide)
		full := func(x *txn) error {
			x.fail(syscall.ENOSPC)
			return nil
		}
		runs := 0
		release, held := b.hold()
		answers := []answer{
			b.start(t.Context(), 1, put("a")),
			b.start(t.Context(), 1, full),
			b.start(t.Context(), 1, put("b")),
			b.start(t.Context(), 1, full),
		}
		release()
		for i, a := range answers {
			if err := <-a; errors.Is(err, store.ErrNoSpace) != (i%2 == 1) || errors.Is(err, store.ErrFailed) {
				t.Errorf("operation %d: %v", i, err)
			}
		}
		if err := <-held; err != nil {
			t.Error(err)
		}
		if got, want := b.written(), []string{"a", "b"}; !slices.Equal(got, want) || len(b.failed) > 0 {
			t.Errorf("written are %v, want %v; failures %v", got, want, b.failed)
		}

		// Together they do not fit, and when they are done again the store fails.
		release, held = b.hold()
		failing := b.start(t.Context(), 1, func(x *txn) error {
			runs++
			if runs == 1 {
				return put("failing")(x)
			}
			return put("")(x)
		})
		after := b.start(t.Context(), 1, full)
		release()
		if err := <-held; err != nil {
			t.Error(err)
		}
		for i, a := range []answer{failing, after} {
			if err := <-a; !errors.Is(err, store.ErrFailed) || errors.Is(err, store.ErrNoSpace) || len(b.failed) != 1 {
				t.Errorf("%d: %v, want ErrFailed; failures %v", i, err, b.failed)
			}
		}
	})
}

// TestCloseAfterRollbackPanics has bbolt allocate a page that is in use, fail to write, and panic when it
// rolls back, which keeps the lock that closing the file needs.
func TestCloseAfterRollbackPanics(t *testing.T) {
	dir := t.TempDir() // Not of the bubble.
	path := filepath.Join(dir, "parley.db")
	synctest.Test(t, func(t *testing.T) {
		put := func(keys ...string) func(*txn) error {
			return func(x *txn) error {
				for _, key := range keys {
					x.put(x.turns, []byte(key), []byte(key+strings.Repeat(" word", 300))) // bbolt puts a1 and a2 into a page, b1 and b2 into the next.
				}
				return nil
			}
		}
		b := newBench(t, dir, wide)
		if err := b.do(t.Context(), 1, put("a1", "a2", "b1", "b2", "c1", "c2", "c3", "c4")); err != nil {
			t.Fatal(err)
		}
		b.close()
		if err := b.db.Close(); err != nil {
			t.Fatal(err)
		}
		freeOnly(t, path, "b1 word")

		b = openBench(t, path, wide)
		b.file.Close()
		if err := b.do(t.Context(), 1, put("a1", "b1")); !errors.Is(err, store.ErrFailed) {
			t.Errorf("a write whose rollback panics: %v, want ErrFailed", err)
		}
		if len(b.failed) != 1 || !strings.Contains(b.failed[0].Error(), "allocated by the same transaction") {
			t.Errorf("failures %v, want the panic of the rollback", b.failed)
		}
		s := &Store{db: b.db, writer: b.writer, tally: newTally()}
		s.failed.Store(true)
		if err := s.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
}

// freeOnly writes a list of free pages that has only the leaf page with the mark.
func freeOnly(t *testing.T, path, mark string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(os.Getpagesize())
	var list, leaf uint64
	for _, number := range usedPages(t, path) {
		page := file[number*size:][:size]
		switch flags := binary.NativeEndian.Uint16(page[8:]); {
		case flags == 0x10:
			list = number
		case flags == leafFlag && bytes.Contains(page, []byte(mark)):
			leaf = number
		}
	}
	if list == 0 || leaf == 0 {
		t.Fatalf("the list of free pages is page %d, the leaf page %d", list, leaf)
	}
	page := file[list*size:]
	binary.NativeEndian.PutUint16(page[10:], 1)
	binary.NativeEndian.PutUint64(page[16:], leaf)
	if err := os.WriteFile(path, file, fileMode); err != nil {
		t.Fatal(err)
	}
}
