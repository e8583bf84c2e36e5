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

// small is a directory in a file system of 1 MiB.
func small(t *testing.T) string {
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

// openSmall opens a store that must not fail.
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

// fill appends to a conversation until there is no space, and returns how often.
func fill(t *testing.T, s *Store, id string) int {
	t.Helper()
	for n := 0; ; n++ {
		_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("word ", 4000))})
		if errors.Is(err, store.ErrNoSpace) {
			return n
		}
		if err != nil || n > 100 {
			t.Fatalf("write %d: %v", n, err)
		}
	}
}

// TestNoSpace fills a small file system.
func TestNoSpace(t *testing.T) {
	var changes int
	s := openSmall(t, small(t), nil, func(c []store.Change) { changes += len(c) })
	for _, id := range []string{"a", "b"} {
		appendTo(t, s, id, "hello")
	}
	written := changes
	written += fill(t, s, "a")
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("there are %v", got)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
		t.Error(err)
	}
	appendTo(t, s, "b", strings.Repeat("word ", 4000))
	if changes != written+2 {
		t.Errorf("told of %d changes, want %d", changes, written+2)
	}
	wantConsistent(t, s)
}

// TestNoSpaceForOne has one batch hold what fits and what does not.
func TestNoSpaceForOne(t *testing.T) {
	dir := small(t) // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := openSmall(t, dir, nil, func(changes []store.Change) {
			for _, c := range changes {
				told = append(told, strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_")+" "+c.ConversationID)
			}
		})
		appendTo(t, s, "b", "hello")
		fill(t, s, "a")
		told = nil

		b := &bench{writer: s.writer, t: t}
		release, held := b.hold()
		start := func(do func() error) answer {
			a := make(answer, 1)
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
		gone := start(func() error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"})
		})
		again := start(func() error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"})
		})
		little := start(add("more"))
		release()
		if err := <-large; !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("what does not fit: %v, want ErrNoSpace", err)
		}
		if err := <-again; !errors.Is(err, store.ErrNotFound) {
			t.Errorf("deleted twice: %v, want ErrNotFound", err)
		}
		if err := errors.Join(<-held, <-gone, <-little); err != nil {
			t.Errorf("what fits: %v", err)
		}
		if want := []string{"DELETED a", "MESSAGE_APPENDED b"}; !slices.Equal(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
		wantConsistent(t, s)
	})
}

// TestNoSpaceForMany has one batch of many creates that do not fit: few of them try. What ends or deletes
// something always tries.
func TestNoSpaceForMany(t *testing.T) {
	const writes = 400
	dir := small(t) // not in the bubble
	synctest.Test(t, func(t *testing.T) {
		s := openSmall(t, dir, nil, nil)
		transactions, begin := 0, s.writer.newTxn
		s.writer.newTxn = func(tx *bolt.Tx) *txn {
			x := begin(tx)
			x.lowSpace = func() bool { return false } // So that only the disk refuses writes.
			transactions++
			return x
		}
		create := func(id string) func() error {
			return func() error {
				_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("word ", 3000))})
				return err
			}
		}
		appendTo(t, s, "b", "hello")
		appendTo(t, s, "a", "hello")
		for i := 0; ; i++ {
			if err := create(fmt.Sprint("fill ", i))(); errors.Is(err, store.ErrNoSpace) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		b := &bench{writer: s.writer, t: t}
		release, held := b.hold()
		transactions = 0
		start := func(do func() error) answer {
			a := make(answer, 1)
			go func() { a <- do() }()
			synctest.Wait()
			return a
		}
		var large []answer
		for i := range writes {
			large = append(large, start(create(fmt.Sprint("large ", i))))
		}
		little := start(func() error {
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "b", Messages: text("little")})
			return err
		})
		gone := start(func() error {
			return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"})
		})
		release()
		for i, a := range large {
			if err := <-a; !errors.Is(err, store.ErrNoSpace) {
				t.Fatalf("large Append %d = %v, want ErrNoSpace", i, err)
			}
		}
		if err := errors.Join(<-held, <-little, <-gone); err != nil {
			t.Errorf("small Append: %v", err)
		}
		if want := 40; transactions > want {
			t.Errorf("%d writes took %d transactions, want at most %d", writes, transactions, want)
		}
		wantConsistent(t, s)
	})
}

// TestNoSpaceBesideDelete has a small delete that does not fit, since its page has a large neighbour,
// beside writes that do: only the delete fails. A create that is as small, and fails, refuses no delete.
func TestNoSpaceBesideDelete(t *testing.T) {
	dir := small(t) // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := openSmall(t, dir, nil, nil)
		begin := s.writer.newTxn
		s.writer.newTxn = func(tx *bolt.Tx) *txn {
			x := begin(tx)
			x.lowSpace = func() bool { return false } // So that writes find out at the disk.
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
		appendTo(t, s, "neighbour", strings.Repeat("word ", 45_000)) // More pages in a row than the writes below can leave free.
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
				if err := add("zz", fmt.Sprint("f", n), strings.Repeat("w", size), store.Append{})(); errors.Is(err, store.ErrNoSpace) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
		together := func(calls ...func() error) (errs []error) {
			b := &bench{writer: s.writer, t: t}
			release, held := b.hold()
			var answers []answer
			for _, do := range append(calls, func() error { return <-held }) {
				a := make(answer, 1)
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
			"o2": add("acme", "tiny", "little", store.Append{}),
		} {
			errs := together(first, remove("other", other+"0"), remove("other", other+"1"), add("other", other+"2", "answer", end),
				func() error {
					return s.SaveProgress(t.Context(), &store.Progress{
						Tenant: "other", ConversationID: other + "4", TurnID: "turn", Messages: text("so far"), Events: &storev1.TurnEvents{Started: 1},
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

// TestNoSpaceToRelease opens a store with session memory that an ended process held: it counts
// as released at once, and is when there is space.
func TestNoSpaceToRelease(t *testing.T) {
	dir, c := small(t), newClock()
	s := openSmall(t, dir, c.Now, nil)
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint(strings.Repeat("long ", 100), i))
		appendTo(t, s, ids[i], "hello")
		hold(t, s, 10*time.Minute, ids[i])
	}
	fill(t, s, "a")
	for i := 0; ; i++ { // What it has left free.
		_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: fmt.Sprint(i), Messages: text(strings.Repeat("word ", 700))})
		if errors.Is(err, store.ErrNoSpace) {
			break
		}
		if err != nil || i > 300 {
			t.Fatal(err)
		}
	}
	waiting := func(want bool) {
		t.Helper()
		if got := s.tally.staleHoldCount() > 0; got != want {
			t.Fatalf("something is left to release is %v", got)
		}
		for _, id := range ids {
			if !lives(t, s, id) {
				t.Fatalf("%s has gone", id)
			}
		}
	}
	s.Close()
	c.advance(30 * time.Minute)
	s = openSmall(t, dir, c.Now, nil)
	waiting(true)
	wantConsistent(t, s)
	c.advance(9 * time.Minute)
	if err := s.releaseStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting(true)
	for _, id := range []string{"a", ids[0]} {
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
			t.Fatal(err)
		}
	}
	ids = ids[1:]
	hold(t, s, 0, ids[0])
	waiting(true)
	sweep(t, s)
	waiting(false)
	wantConsistent(t, s)
	c.advance(time.Minute)
	for i, id := range ids {
		if lives(t, s, id) != (i == 0) {
			t.Errorf("%s lives is %v", id, i != 0)
		}
	}
	sweep(t, s)
	wantConsistent(t, s)
	if n := s.tally.ephemeralCounts["acme"]; n != 1 {
		t.Errorf("%d ids are session memory, want the one that is held", n)
	}
}
