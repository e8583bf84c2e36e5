package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// hold holds conversations of tenant "acme".
func hold(t *testing.T, s *Store, after time.Duration, ids ...string) {
	t.Helper()
	if err := s.Hold(t.Context(), &store.Hold{Tenant: "acme", ConversationIDs: ids, DeleteAfter: after}); err != nil {
		t.Fatal(err)
	}
}

func release(t *testing.T, s *Store, after time.Duration, ids ...string) {
	t.Helper()
	if err := s.Release(t.Context(), &store.Hold{Tenant: "acme", ConversationIDs: ids, DeleteAfter: after}); err != nil {
		t.Fatal(err)
	}
}

// lives reports whether there is a conversation of tenant "acme".
func lives(t *testing.T, s *Store, id string) bool {
	t.Helper()
	_, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// TestSessionsRestart ends a process that holds conversations, in two ways.
func TestSessionsRestart(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *Store) (path string){
		"close": func(t *testing.T, s *Store) string {
			t.Helper()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return s.path
		},
		"kill -9": func(t *testing.T, s *Store) string {
			t.Helper()
			left := newPath(t)
			if err := os.WriteFile(left, content(t, s.path), 0o600); err != nil {
				t.Fatal(err)
			}
			return left
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := openThree(t, store.Options{})
			hold(t, s, time.Hour, "old", "bad", "none")
			hold(t, s, 3*time.Hour, "old")
			release(t, s, time.Minute, "bad")
			release(t, s, 0, "new")
			hold(t, s, 0, "new")
			wantConsistent(t, s)
			c.advance(30 * time.Second)
			s = open(t, end(t, s), store.Options{Now: c.Now})
			wantConsistent(t, s)
			if !lives(t, s, "old") || !lives(t, s, "bad") || lives(t, s, "new") {
				t.Errorf("live are %v, want old and bad", listIDs(t, s, "acme"))
			}
			release(t, s, 0, "old", "bad")
			c.advance(30 * time.Second)
			if !lives(t, s, "old") || lives(t, s, "bad") {
				t.Errorf("after bad's time there are %v", listIDs(t, s, "acme"))
			}
			c.advance(3*time.Hour - 31*time.Second)
			sweep(t, s)
			if !lives(t, s, "old") {
				t.Error("old has gone before its time")
			}
			c.advance(time.Second)
			if lives(t, s, "old") {
				t.Error("old lives on")
			}
			sweep(t, s)
			wantConsistent(t, s)
			if n := s.tally.ephemeralCounts["acme"]; n != 0 {
				t.Errorf("%d ids are session memory", n)
			}
		})
	}
}

// TestSessionsCompact compacts the file of processes that end while they hold a conversation. The
// transactions are counted anew then, and no process may take another's hold for its own.
func TestSessionsCompact(t *testing.T) {
	path, c := newPath(t), newClock()
	for range 3 {
		s := open(t, path, store.Options{Now: c.Now})
		hold(t, s, time.Minute, "held")
		appendTo(t, s, "held", "hello")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Compact(path, soundly); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, path, store.Options{Now: c.Now})
	sweep(t, s) // Time runs from the start on.
	c.advance(time.Minute)
	if lives(t, s, "held") {
		t.Error("what an ended process held lives on")
	}
	sweep(t, s)
	wantConsistent(t, s)
}

// TestSessionsOpenUnchanged opens a file in which nothing is held: it is not written to.
func TestSessionsOpenUnchanged(t *testing.T) {
	s, c := openThree(t, store.Options{})
	hold(t, s, 0, "old")
	release(t, s, time.Hour, "old")
	s.Close()
	before := content(t, s.path)
	open(t, s.path, store.Options{Now: c.Now}).Close()
	if !bytes.Equal(before, content(t, s.path)) {
		t.Error("it was changed")
	}
}

// TestSessionsOlderFile opens a file of the version that knew no session memory.
func TestSessionsOlderFile(t *testing.T) {
	s, c := openThree(t, store.Options{})
	s.Close()
	if err := update(func(tx *bolt.Tx) error {
		return errors.Join(tx.DeleteBucket([]byte(sessionsBucket)), tx.DeleteBucket([]byte(endsBucket)))
	})(s.path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s = open(t, s.path, store.Options{Now: c.Now})
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "bad", "old"}) || !lives(t, s, "old") {
			t.Errorf("listed are %v", got)
		}
		sweep(t, s)
		hold(t, s, time.Hour, "old")
		wantConsistent(t, s)
		s.Close()
	}
}

// TestSessionsInSteps ends very much session memory at once, behind what is held and what is
// not due yet.
func TestSessionsInSteps(t *testing.T) {
	seen := stepCounter{kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED}
	s, c := openMany(t, newPath(t), 700, store.Options{TTL: 5 * time.Hour, Observe: seen.observe})
	var ids, others []string
	for i := range 700 {
		ids = append(ids, fmt.Sprint(i))
	}
	for i := range 2 * maxDueScan {
		others = append(others, fmt.Sprint("-", i))
	}
	hold(t, s, 0, slices.Concat(ids, others)...)
	release(t, s, 2*time.Hour, others[:maxDueScan+1]...)
	release(t, s, time.Hour, ids...)
	c.advance(time.Hour)
	for _, want := range []bool{true, false} {
		if more, err := s.Sweep(t.Context(), 600); err != nil || more != want {
			t.Errorf("%v, %v; want %v", more, err, want)
		}
	}
	seen.want(t, 256, 256, 88, 100)
	wantConsistent(t, s)
	c.advance(time.Hour)
	for range 40 {
		if _, err := s.Sweep(t.Context(), 256); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.tally.ephemeralCounts["acme"]; n != maxDueScan-1 {
		t.Errorf("%d ids are session memory, want those that are held", n)
	}
}

// TestSessionsRerun has holds and releases in batches that are done again, and that fail.
func TestSessionsRerun(t *testing.T) {
	path := newPath(t) // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		s := open(t, path, store.Options{Now: c.Now})
		appendTo(t, s, "a", "hello")
		appendTo(t, s, "b", "hello")
		hold(t, s, time.Hour, "a")
		full := func(apply func(*txn) error) func(*txn) error {
			return func(x *txn) error {
				x.fail(syscall.ENOSPC)
				return apply(x)
			}
		}
		holding := func(ids ...string) func(*txn) error {
			return func(x *txn) error { return x.hold("acme", ids, time.Hour, c.Now()) }
		}
		releasing := func(id string) func(*txn) error {
			return func(x *txn) error {
				x.release("acme", id, 0, c.Now())
				return nil
			}
		}
		b := &bench{writer: s.writer, t: t}
		letGo, held := b.hold()
		answers := []answer{
			b.start(t.Context(), 0, holding("a", "b", "c")),
			b.start(t.Context(), 0, full(holding("a", "d"))),
			b.start(t.Context(), 0, full(releasing("a"))),
			b.start(t.Context(), 0, releasing("c")),
		}
		letGo()
		if err := <-held; err != nil {
			t.Error(err)
		}
		for i, a := range answers {
			if err := <-a; errors.Is(err, store.ErrNoSpace) != (i == 1 || i == 2) {
				t.Errorf("operation %d: %v", i, err)
			}
		}
		wantConsistent(t, s)
		release(t, s, 0, "a", "b", "c", "d")
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("left are %v, want a, which was held twice", got)
		}

		// All in one transaction.
		letGo, held = b.hold()
		answers = nil
		for _, apply := range []func(*txn) error{holding("a"), releasing("a"), holding("a"), releasing("a")} {
			answers = append(answers, b.start(t.Context(), 0, apply))
		}
		letGo()
		for _, a := range append(answers, held) {
			if err := <-a; err != nil {
				t.Error(err)
			}
		}
		if !lives(t, s, "a") {
			t.Error("a has gone, although it is held")
		}
		release(t, s, 0, "a")
		if got := listIDs(t, s, "acme"); len(got) != 0 {
			t.Errorf("left are %v", got)
		}
		wantConsistent(t, s)
	})
}

// TestSessionsSetBack sets the clock back when the sweeper has seen what is over.
func TestSessionsSetBack(t *testing.T) {
	s, c := openThree(t, store.Options{})
	hold(t, s, 0, "bad")
	release(t, s, time.Minute, "bad")
	c.advance(time.Minute)
	over, _, err := s.readDue(t.Context(), dueBucket{endsBucket, secondOf, nil}, 10)
	if err != nil || len(over) != 1 {
		t.Fatalf("%v are due, %v; want bad", over, err)
	}
	c.advance(-1)
	for _, want := range []bool{true, false, false} {
		if err := s.writer.do(t.Context(), 0, func(x *txn) error {
			x.sweepEphemeral(over[0], c.Now())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if lives(t, s, "bad") != want {
			t.Errorf("bad lives is %v", !want)
		}
		wantConsistent(t, s)
		c.advance(1)
	}
}

// TestSessionsMany has many hold and release as much as they may, all at once: they are not
// all in one transaction, and some must come again.
func TestSessionsMany(t *testing.T) {
	path := newPath(t) // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path, store.Options{})
		var holds [100]store.Hold
		for i := range holds {
			holds[i].Tenant = "acme"
			for n := range 1000 {
				holds[i].ConversationIDs = append(holds[i].ConversationIDs, fmt.Sprint(n, " of ", i))
			}
		}
		b := &bench{writer: s.writer, t: t}
		for i, do := range []func(context.Context, *store.Hold) error{s.Hold, s.Release} {
			before := transaction(t, s)
			letGo, held := b.hold()
			answers := make([]answer, len(holds))
			for i := range answers {
				answers[i] = make(answer, 1)
				go func() { answers[i] <- do(t.Context(), &holds[i]) }()
				synctest.Wait() // One after the other, so that the same ones are refused.
			}
			letGo()
			done := 0
			for _, a := range answers {
				if err := <-a; err == nil {
					done++
				} else if !errors.Is(err, store.ErrOverloaded) {
					t.Error(err)
				}
			}
			if err := <-held; err != nil {
				t.Error(err)
			}
			n := transaction(t, s) - before
			if done == 0 || done > 70 || done > 20*n {
				t.Errorf("call %d: %d were done in %d transactions", i, done, n)
			}
		}
	})
}

// transaction is the number of the newest one.
func transaction(t *testing.T, s *Store) (n int) {
	t.Helper()
	_ = s.db.View(func(tx *bolt.Tx) error {
		n = tx.ID()
		return nil
	})
	return n
}

// TestSessionsBehindOthers lets one tenant's session memory end behind very much of another's
// that ends later in the same minute.
func TestSessionsBehindOthers(t *testing.T) {
	s, c := openMany(t, newPath(t), maxDueScan+1, store.Options{}) // At second 16 now.
	var others []string
	for i := range maxDueScan + 1 {
		others = append(others, fmt.Sprint(i))
	}
	hold(t, s, 0, others...)
	release(t, s, 40*time.Second, others...)
	late := &store.Hold{Tenant: "zebra", ConversationIDs: []string{"a"}, DeleteAfter: 30 * time.Second}
	_, err := s.Create(t.Context(), &store.Create{Tenant: late.Tenant, Conversation: &parleyv1.Conversation{Id: "a"}})
	if err := errors.Join(err, s.Hold(t.Context(), late), s.Release(t.Context(), late)); err != nil {
		t.Fatal(err)
	}
	c.advance(30 * time.Second)
	sweep(t, s)
	if n := s.tally.ephemeralCounts[late.Tenant]; n != 0 {
		t.Error("it is not swept")
	}
}
