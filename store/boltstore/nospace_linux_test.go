package boltstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// mountSmall returns a directory in a file system of 1 MiB.
func mountSmall(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("only root can mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// openSmall opens a store in dir. If the store fails, the test fails.
func openSmall(t *testing.T, dir string, now func() time.Time, observe func([]store.Change)) *Store {
	t.Helper()
	s, err := Open(filepath.Join(dir, "parley.db"), Options{
		Options:   store.Options{MaxMessages: 1000, Now: now, Observe: observe},
		OnFailure: func(err error) { t.Errorf("failed: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// fillDisk appends to a conversation until there is no space, and returns the number of appends.
func fillDisk(t *testing.T, s *Store, id string) int {
	t.Helper()
	for n := 0; ; n++ {
		_, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("word ", 4000)),
		})
		if errors.Is(err, store.ErrNoSpace) {
			return n
		}
		if err != nil || n > 100 {
			t.Fatalf("write %d: %v", n, err)
		}
	}
}

// TestNoSpace fills a small file system and frees it again.
func TestNoSpace(t *testing.T) {
	var changes int
	s := openSmall(t, mountSmall(t), nil, func(c []store.Change) { changes += len(c) })
	for _, id := range []string{"a", "b"} {
		appendTo(t, s, id, "hello")
	}
	written := changes
	written += fillDisk(t, s, "a")
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("List = %v, want b and a", got)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
		t.Error(err)
	}
	appendTo(t, s, "b", strings.Repeat("word ", 4000))
	if changes != written+2 {
		t.Errorf("observed %d changes, want %d", changes, written+2)
	}
	wantConsistent(t, s)
}

// TestNoSpaceForOne runs a batch of writes of which one does not fit on the disk.
func TestNoSpaceForOne(t *testing.T) {
	dir := mountSmall(t) // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		var observed []string
		s := openSmall(t, dir, nil, func(changes []store.Change) {
			for _, c := range changes {
				observed = append(observed, strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_")+" "+c.ConversationID)
			}
		})
		appendTo(t, s, "b", "hello")
		fillDisk(t, s, "a")
		observed = nil

		b := &testWriter{writer: s.writer, t: t}
		release, held := b.block()
		start := func(do func() error) pending {
			a := make(pending, 1)
			go func() { a <- do() }()
			synctest.Wait()
			return a
		}
		add := func(content string) func() error {
			return func() error {
				_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "b", Messages: text(content)})
				return err
			}
		}
		large := start(add(strings.Repeat("word ", 300_000)))
		deleted := start(func() error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"})
		})
		deletedAgain := start(func() error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"})
		})
		small := start(add("more"))
		release()
		if err := <-large; !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("large Append = %v, want ErrNoSpace", err)
		}
		if err := <-deletedAgain; !errors.Is(err, store.ErrNotFound) {
			t.Errorf("second Delete = %v, want ErrNotFound", err)
		}
		if err := errors.Join(<-held, <-deleted, <-small); err != nil {
			t.Errorf("writes that fit = %v", err)
		}
		if want := []string{"DELETED a", "MESSAGE_APPENDED b"}; !slices.Equal(observed, want) {
			t.Errorf("observed changes = %v, want %v", observed, want)
		}
		wantConsistent(t, s)
	})
}

// TestNoSpaceForMany runs a batch of many creates that do not fit. Few of them may try. Operations
// that end or delete always try.
func TestNoSpaceForMany(t *testing.T) {
	const writes = 200
	// The space that is left when writes of fillSize fail depends on the pages that bbolt chose. It is less than largeSize.
	const fillSize, largeSize = 3000, 12_000 // in words
	dir := mountSmall(t)                     // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := openSmall(t, dir, nil, nil)
		transactions, begin := 0, s.writer.newTxn
		s.writer.newTxn = func(tx *bolt.Tx) *txn {
			x := begin(tx)
			x.lowSpace = func() bool { return false } // Only the disk refuses writes.
			transactions++
			return x
		}
		create := func(id string, words int) func() error {
			return func() error {
				_, err := s.Append(t.Context(), &store.Append{
					Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("word ", words)),
				})
				return err
			}
		}
		appendTo(t, s, "b", "hello")
		appendTo(t, s, "a", "hello")
		for i := 0; ; i++ {
			if err := create(fmt.Sprint("fill ", i), fillSize)(); errors.Is(err, store.ErrNoSpace) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		b := &testWriter{writer: s.writer, t: t}
		release, held := b.block()
		transactions = 0
		start := func(do func() error) pending {
			a := make(pending, 1)
			go func() { a <- do() }()
			synctest.Wait()
			return a
		}
		var large []pending
		for i := range writes {
			large = append(large, start(create(fmt.Sprint("large ", i), largeSize)))
		}
		small := start(func() error {
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "b", Messages: text("small")})
			return err
		})
		deleted := start(func() error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"})
		})
		release()
		for i, a := range large {
			if err := <-a; !errors.Is(err, store.ErrNoSpace) {
				t.Fatalf("large Append %d = %v, want ErrNoSpace", i, err)
			}
		}
		if err := errors.Join(<-held, <-small, <-deleted); err != nil {
			t.Errorf("small Append: %v", err)
		}
		if want := 40; transactions > want {
			t.Errorf("%d writes took %d transactions, want at most %d", writes, transactions, want)
		}
		wantConsistent(t, s)
	})
}

// TestNoSpaceBesideDelete runs a small delete that does not fit, since its page has a large
// neighbour, in a batch with writes that fit. Only the delete may fail. A create of the same size
// that fails must not make deletes fail.
func TestNoSpaceBesideDelete(t *testing.T) {
	dir := mountSmall(t) // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := openSmall(t, dir, nil, nil)
		begin := s.writer.newTxn
		s.writer.newTxn = func(tx *bolt.Tx) *txn {
			x := begin(tx)
			x.lowSpace = func() bool { return false } // Only the disk refuses writes.
			return x
		}
		add := func(tenant, id, content string, a store.Append) func() error {
			return func() error {
				a.Tenant, a.ConversationID, a.Messages = tenant, id, text(content)
				_, err := s.Append(t.Context(), &a)
				return err
			}
		}
		remove := func(tenant, id string) func() error {
			return func() error { return s.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: id}) }
		}
		appendTo(t, s, "tiny", "hello")
		// More contiguous pages than the writes below can leave free.
		appendTo(t, s, "neighbour", strings.Repeat("word ", 45_000))
		asked := store.Append{Begin: &parleyv1.Turn{Id: "turn"}, Events: &storev1.TurnEvents{Started: 1}}
		for i := range 40 {
			if err := add("other", fmt.Sprint("o", i), strings.Repeat("x", 900), asked)(); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for _, size := range []int{60_000, 30_000, 15_000, 7000, 3500, 1500} {
			for {
				n++
				if err := add("zz", fmt.Sprint("f", n), strings.Repeat("w", size),
					store.Append{})(); errors.Is(err, store.ErrNoSpace) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
		together := func(calls ...func() error) (errs []error) {
			b := &testWriter{writer: s.writer, t: t}
			release, held := b.block()
			var answers []pending
			for _, do := range append(calls, func() error { return <-held }) {
				a := make(pending, 1)
				go func() { a <- do() }()
				synctest.Wait()
				answers = append(answers, a)
			}
			release()
			for _, a := range answers {
				errs = append(errs, <-a)
			}
			return errs
		}
		end := store.Append{End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_COMPLETED}}
		for other, first := range map[string]func() error{ // By the ids of the others in the batch.
			"o1": remove("acme", "tiny"),
			"o2": add("acme", "tiny", "small", store.Append{}),
		} {
			errs := together(first, remove("other", other+"0"), remove("other", other+"1"),
				add("other", other+"2", "answer", end),
				func() error {
					return s.SaveProgress(t.Context(), &store.Progress{
						Tenant: "other", ConversationID: other + "4", TurnID: "turn", Messages: text("so far"),
						Events: &storev1.TurnEvents{Started: 1},
					})
				})
			if !errors.Is(errs[0], store.ErrNoSpace) {
				t.Errorf("batch of %s: write beside a large conversation = %v, want ErrNoSpace", other, errs[0])
			}
			for i, err := range errs[1:] {
				if err != nil {
					t.Errorf("batch of %s: write %d = %v", other, i, err)
				}
			}
		}
		wantConsistent(t, s)
	})
}

// TestNoSpaceToRelease opens a store with holds of an ended process while the disk is full. They
// count as released at once, and are released in the file when there is space.
func TestNoSpaceToRelease(t *testing.T) {
	dir, c := mountSmall(t), newClock()
	s := openSmall(t, dir, c.Now, nil)
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint(strings.Repeat("long ", 100), i))
		appendTo(t, s, ids[i], "hello")
		hold(t, s, 10*time.Minute, ids[i])
	}
	fillDisk(t, s, "a")
	deleted := []string{"a", ids[0]}
	for i := 0; ; i++ { // Uses the space that fillDisk has left.
		_, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: fmt.Sprint(i), Messages: text(strings.Repeat("word ", 700)),
		})
		if errors.Is(err, store.ErrNoSpace) {
			break
		}
		if err != nil || i > 300 {
			t.Fatal(err)
		}
		deleted = append(deleted, fmt.Sprint(i))
	}
	wantStaleHolds := func(want bool) {
		t.Helper()
		if got := s.tally.staleHoldCount() > 0; got != want {
			t.Fatalf("holds of the ended process are left: %v", got)
		}
		for _, id := range ids {
			if !exists(t, s, id) {
				t.Fatalf("%s does not exist", id)
			}
		}
	}
	s.Close()
	c.advance(30 * time.Minute)
	s = openSmall(t, dir, c.Now, nil)
	wantStaleHolds(true)
	wantConsistent(t, s)
	c.advance(9 * time.Minute)
	if err := s.releaseStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStaleHolds(true)
	for _, id := range deleted {
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
			t.Fatal(err)
		}
	}
	ids = ids[1:]
	hold(t, s, 0, ids[0])
	wantStaleHolds(true)
	sweep(t, s)
	wantStaleHolds(false)
	wantConsistent(t, s)
	c.advance(time.Minute)
	for i, id := range ids {
		if exists(t, s, id) != (i == 0) {
			t.Errorf("%s exists: %v", id, i != 0)
		}
	}
	sweep(t, s)
	wantConsistent(t, s)
	if n := s.tally.ephemeralCounts["acme"]; n != 1 {
		t.Errorf("%d ids are ephemeral, want the held one", n)
	}
}
