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
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

func TestWriterFails(t *testing.T) {
	for name, fail := range map[string]func(*testWriter, *txn) error{
		"commit": func(b *testWriter, x *txn) error {
			b.file.Close()
			return put("key")(x)
		},
		"put": func(_ *testWriter, x *txn) error { return put("")(x) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() // Created outside of the bubble.
			synctest.Test(t, func(t *testing.T) {
				b := newTestWriter(t, dir, limits{operations: 100, bytes: 100, batch: 3, batchBytes: 100})
				release, _ := b.block()
				answers := []pending{
					b.start(t.Context(), "acme", 1, put("before")),
					b.start(t.Context(), "acme", 1, func(x *txn) error { return fail(b, x) }),
					b.start(t.Context(), "acme", 1, put("after")),
					b.start(t.Context(), "acme", 1, put("in the next batch")),
				}
				release()
				for i, a := range answers {
					if err := <-a; !errors.Is(err, store.ErrFailed) {
						t.Errorf("operation %d = %v, want ErrFailed", i, err)
					}
				}
				if err := b.do(t.Context(), "acme", 1, put("late")); !errors.Is(err, store.ErrFailed) {
					t.Errorf("operation after the failure = %v, want ErrFailed", err)
				}
				if len(b.failures) != 1 || !errors.Is(b.failures[0], store.ErrFailed) || len(b.commits) != 0 {
					t.Errorf("failures = %v with %d commits, want one failure", b.failures, len(b.commits))
				}
				b.close()
				if err := b.do(t.Context(), "acme", 1, put("later")); !errors.Is(err, store.ErrClosed) {
					t.Errorf("operation after close = %v, want ErrClosed", err)
				}
			})
		})
	}
}

// TestWriterFailsWhileClosing closes the writer while an operation runs whose commit then fails.
func TestWriterFailsWhileClosing(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, wideLimits)
		gate := make(chan struct{})
		started := b.start(t.Context(), "acme", 1, func(x *txn) error {
			<-gate
			return put("")(x)
		})
		go b.close()
		synctest.Wait()
		close(gate)
		if err := <-started; !errors.Is(err, store.ErrFailed) {
			t.Errorf("running operation = %v, want ErrFailed", err)
		}
		if err := b.do(t.Context(), "acme", 1, put("late")); !errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			t.Errorf("operation after close = %v, want ErrClosed", err)
		}
	})
}

// TestWriterPanics runs operations that panic before or after they have written, in batches with
// others.
func TestWriterPanics(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, wideLimits)
		release, held := b.block()
		cause := "page 7: unexpected page type"
		unwritten := func(*txn) error { panic(cause) }
		written := func(x *txn) error {
			x.put(x.turns, []byte("rolled back"), nil)
			panic(cause)
		}
		answers := []pending{
			b.start(t.Context(), "acme", 1, put("a")),
			b.start(t.Context(), "acme", 1, unwritten),
			b.start(t.Context(), "acme", 1, put("b")),
			b.start(t.Context(), "acme", 1, written),
			b.start(t.Context(), "acme", 1, put("c")),
			b.start(t.Context(), "acme", 1, written),
		}
		release()
		for i, a := range answers {
			if err := <-a; errors.Is(err, store.ErrCorrupt) != (i%2 == 1) || errors.Is(err, store.ErrFailed) {
				t.Errorf("operation %d = %v, want ErrCorrupt of the odd ones only", i, err)
			}
		}
		for name, apply := range map[string]func(*txn) error{"unwritten": unwritten, "written": written} {
			if err := b.do(t.Context(), "acme", 1, apply); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("%s operation alone = %v, want ErrCorrupt", name, err)
			}
		}
		if err := errors.Join(<-held, b.do(t.Context(), "acme", 1, put("d"))); err != nil {
			t.Error(err)
		}
		if got, want := b.keys(), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) || len(b.failures) > 0 {
			t.Errorf("written keys = %v, want %v; failures %v", got, want, b.failures)
		}
	})
}

// TestWriterNoSpace runs operations that find no space in batches with others.
func TestWriterNoSpace(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, wideLimits)
		full := func(x *txn) error {
			x.fail(syscall.ENOSPC)
			return nil
		}
		runs := 0
		release, held := b.block()
		answers := []pending{
			b.start(t.Context(), "acme", 1, put("a")),
			b.start(t.Context(), "acme", 1, full),
			b.start(t.Context(), "acme", 1, put("b")),
			b.start(t.Context(), "acme", 1, full),
		}
		release()
		for i, a := range answers {
			if err := <-a; errors.Is(err, store.ErrNoSpace) != (i%2 == 1) || errors.Is(err, store.ErrFailed) {
				t.Errorf("operation %d = %v, want ErrNoSpace of the odd ones only", i, err)
			}
		}
		if err := <-held; err != nil {
			t.Error(err)
		}
		if got, want := b.keys(), []string{"a", "b"}; !slices.Equal(got, want) || len(b.failures) > 0 {
			t.Errorf("written keys = %v, want %v; failures %v", got, want, b.failures)
		}

		// The batch finds no space. When its first half is applied again, the store fails.
		release, held = b.block()
		failing := b.start(t.Context(), "acme", 1, func(x *txn) error {
			runs++
			if runs == 1 {
				return put("failing")(x)
			}
			return put("")(x)
		})
		after := b.start(t.Context(), "acme", 1, full)
		release()
		if err := <-held; err != nil {
			t.Error(err)
		}
		for i, a := range []pending{failing, after} {
			if err := <-a; !errors.Is(err, store.ErrFailed) || errors.Is(err, store.ErrNoSpace) || len(b.failures) != 1 {
				t.Errorf("operation %d = %v, want ErrFailed; failures %v", i, err, b.failures)
			}
		}
	})
}

// TestCloseAfterRollbackPanics makes bbolt allocate a page in use, fail to write, and panic in the
// rollback. bbolt then keeps the lock that closing the file needs.
func TestCloseAfterRollbackPanics(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	path := filepath.Join(dir, "parley.db")
	synctest.Test(t, func(t *testing.T) {
		put := func(keys ...string) func(*txn) error {
			return func(x *txn) error {
				for _, key := range keys {
					// bbolt puts a1 and a2 into one page, b1 and b2 into the next.
					x.put(x.turns, []byte(key), []byte(key+strings.Repeat(" word", 300)))
				}
				return nil
			}
		}
		b := newTestWriter(t, dir, wideLimits)
		if err := b.do(t.Context(), "acme", 1, put("a1", "a2", "b1", "b2", "c1", "c2", "c3", "c4")); err != nil {
			t.Fatal(err)
		}
		b.close()
		if err := b.db.Close(); err != nil {
			t.Fatal(err)
		}
		freeOnly(t, path, "b1 word")

		b = openTestWriter(t, path, wideLimits)
		b.file.Close()
		if err := b.do(t.Context(), "acme", 1, put("a1", "b1")); !errors.Is(err, store.ErrFailed) {
			t.Errorf("write whose rollback panics = %v, want ErrFailed", err)
		}
		if len(b.failures) != 1 || !strings.Contains(b.failures[0].Error(), "allocated by the same transaction") {
			t.Errorf("failures = %v, want the panic of the rollback", b.failures)
		}
		s := &Store{db: b.db, writer: b.writer, tally: newTally(0)}
		s.failed.Store(true)
		if err := s.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
}

// freeOnly replaces the list of free pages with the leaf page that contains mark.
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
		case flags == leafPageFlag && bytes.Contains(page, []byte(mark)):
			leaf = number
		}
	}
	if list == 0 || leaf == 0 {
		t.Fatalf("the list of free pages is page %d, the leaf page %d", list, leaf)
	}
	page := file[list*size:]
	binary.NativeEndian.PutUint16(page[10:], 1)
	binary.NativeEndian.PutUint64(page[16:], leaf)
	if err := os.WriteFile(path, file, boltfile.FileMode); err != nil {
		t.Fatal(err)
	}
}
