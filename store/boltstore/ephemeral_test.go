package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// hold holds ids of tenant "acme".
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

// exists reports whether tenant "acme" has a conversation with that id.
func exists(t *testing.T, s *Store, id string) bool {
	t.Helper()
	_, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// TestEphemeralRestart ends a process that holds conversations, in order and by a kill.
func TestEphemeralRestart(t *testing.T) {
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
			copied := newPath(t)
			if err := os.WriteFile(copied, fileContent(t, s.path), 0o600); err != nil {
				t.Fatal(err)
			}
			return copied
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
			if !exists(t, s, "old") || !exists(t, s, "bad") || exists(t, s, "new") {
				t.Errorf("List = %v, want old and bad", listIDs(t, s, "acme"))
			}
			release(t, s, 0, "old", "bad")
			c.advance(30 * time.Second)
			if !exists(t, s, "old") || exists(t, s, "bad") {
				t.Errorf("List after the end of bad = %v, want old", listIDs(t, s, "acme"))
			}
			c.advance(3*time.Hour - 31*time.Second)
			sweep(t, s)
			if !exists(t, s, "old") {
				t.Error("old was deleted before its end")
			}
			c.advance(time.Second)
			if exists(t, s, "old") {
				t.Error("old exists after its end")
			}
			sweep(t, s)
			wantConsistent(t, s)
			if n := s.tally.ephemeralCounts["acme"]; n != 0 {
				t.Errorf("%d ids are ephemeral, want none", n)
			}
		})
	}
}

// TestEphemeralCompact compacts the file after each process that ended while it held a
// conversation. Transaction numbers start again then, and no process may mistake another's hold for
// its own.
func TestEphemeralCompact(t *testing.T) {
	path, c := newPath(t), newClock()
	for range 3 {
		s := open(t, path, store.Options{Now: c.Now})
		hold(t, s, time.Minute, "held")
		appendTo(t, s, "held", "hello")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Compact(path, checkSound); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, path, store.Options{Now: c.Now})
	sweep(t, s) // The DeleteAfter begins when the file is opened.
	c.advance(time.Minute)
	if exists(t, s, "held") {
		t.Error("the conversation that an ended process held exists after its end")
	}
	sweep(t, s)
	wantConsistent(t, s)
}

// TestEphemeralOpenUnchanged opens a file without holds. Open must not write to it.
func TestEphemeralOpenUnchanged(t *testing.T) {
	s, c := openThree(t, store.Options{})
	hold(t, s, 0, "old")
	release(t, s, time.Hour, "old")
	s.Close()
	before := fileContent(t, s.path)
	open(t, s.path, store.Options{Now: c.Now}).Close()
	if !bytes.Equal(before, fileContent(t, s.path)) {
		t.Error("Open changed the file")
	}
}

// TestEphemeralOlderFile opens a file of a version without ephemeral conversations.
func TestEphemeralOlderFile(t *testing.T) {
	s, c := openThree(t, store.Options{})
	s.Close()
	if err := editBolt(func(tx *bolt.Tx) error {
		return errors.Join(tx.DeleteBucket([]byte(layout.SessionsBucket)), tx.DeleteBucket([]byte(layout.EndsBucket)))
	})(s.path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s = open(t, s.path, store.Options{Now: c.Now})
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "bad", "old"}) || !exists(t, s, "old") {
			t.Errorf("List = %v, want all three", got)
		}
		sweep(t, s)
		hold(t, s, time.Hour, "old")
		wantConsistent(t, s)
		s.Close()
	}
}

// TestEphemeralInSteps ends very many ephemeral conversations at once. Held ones and ones that are
// not due come first.
func TestEphemeralInSteps(t *testing.T) {
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
			t.Errorf("Sweep = %v, %v; want %v", more, err, want)
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
		t.Errorf("%d ids are ephemeral, want the held ones", n)
	}
}

// TestEphemeralRerun runs holds and releases in batches that are applied again, and in batches that
// fail.
func TestEphemeralRerun(t *testing.T) {
	path := newPath(t) // Created outside of the bubble.
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
		b := &testWriter{writer: s.writer, t: t}
		unblock, held := b.block()
		answers := []pending{
			b.start(t.Context(), "acme", 0, holding("a", "b", "c")),
			b.start(t.Context(), "acme", 0, full(holding("a", "d"))),
			b.start(t.Context(), "acme", 0, full(releasing("a"))),
			b.start(t.Context(), "acme", 0, releasing("c")),
		}
		unblock()
		if err := <-held; err != nil {
			t.Error(err)
		}
		for i, a := range answers {
			if err := <-a; errors.Is(err, store.ErrNoSpace) != (i == 1 || i == 2) {
				t.Errorf("operation %d = %v, want ErrNoSpace of 1 and 2 only", i, err)
			}
		}
		wantConsistent(t, s)
		release(t, s, 0, "a", "b", "c", "d")
		if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("List = %v, want a, which was held twice", got)
		}

		// These operations are all in one transaction.
		unblock, held = b.block()
		answers = nil
		for _, apply := range []func(*txn) error{holding("a"), releasing("a"), holding("a"), releasing("a")} {
			answers = append(answers, b.start(t.Context(), "acme", 0, apply))
		}
		unblock()
		for _, a := range append(answers, held) {
			if err := <-a; err != nil {
				t.Error(err)
			}
		}
		if !exists(t, s, "a") {
			t.Error("a was deleted, although it is held")
		}
		release(t, s, 0, "a")
		if got := listIDs(t, s, "acme"); len(got) != 0 {
			t.Errorf("List = %v, want none", got)
		}
		wantConsistent(t, s)
	})
}

// TestEphemeralClockSetBack sets the clock back after the sweeper has read a due entry.
func TestEphemeralClockSetBack(t *testing.T) {
	s, c := openThree(t, store.Options{})
	hold(t, s, 0, "bad")
	release(t, s, time.Minute, "bad")
	c.advance(time.Minute)
	due, _, err := s.readDue(t.Context(), dueBucket{layout.EndsBucket, layout.SecondOf, nil}, 10)
	if err != nil || len(due) != 1 {
		t.Fatalf("readDue = %v, %v; want bad", due, err)
	}
	c.advance(-1)
	for _, want := range []bool{true, false, false} {
		if err := s.writer.do(t.Context(), "acme", 0, func(x *txn) error {
			x.sweepEphemeral(due[0], c.Now())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if exists(t, s, "bad") != want {
			t.Errorf("bad exists: %v", !want)
		}
		wantConsistent(t, s)
		c.advance(1)
	}
}

// TestEphemeralBatches makes many concurrent holds and releases of the maximum size. They must not
// all be in one transaction, and some must be refused.
func TestEphemeralBatches(t *testing.T) {
	path := newPath(t) // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path, store.Options{})
		var holds [100]store.Hold
		for i := range holds {
			holds[i].Tenant = "acme"
			for n := range 1000 {
				holds[i].ConversationIDs = append(holds[i].ConversationIDs, fmt.Sprint(n, " of ", i))
			}
		}
		b := &testWriter{writer: s.writer, t: t}
		for i, do := range []func(context.Context, *store.Hold) error{s.Hold, s.Release} {
			before := transaction(t, s)
			unblock, held := b.block()
			answers := make([]pending, len(holds))
			for i := range answers {
				answers[i] = make(pending, 1)
				go func() { answers[i] <- do(t.Context(), &holds[i]) }()
				synctest.Wait() // In order, so that the same ones are refused.
			}
			unblock()
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
				t.Errorf("call %d: %d calls succeeded in %d transactions", i, done, n)
			}
		}
	})
}

// transaction returns the number of the newest transaction.
func transaction(t *testing.T, s *Store) (n int) {
	t.Helper()
	_ = s.db.View(func(tx *bolt.Tx) error {
		n = tx.ID()
		return nil
	})
	return n
}

// TestEphemeralAfterOthers ends an ephemeral conversation of one tenant. Very many of another
// tenant, which end later in the same minute, come before it.
func TestEphemeralAfterOthers(t *testing.T) {
	c := newClock() // At second 6.
	s := open(t, newPath(t), store.Options{Now: c.Now})
	var others []string
	for i := range maxDueScan + 1 {
		others = append(others, fmt.Sprint(i))
	}
	var writers sync.WaitGroup
	for some := range slices.Chunk(others, len(others)/100) { // Together they need fewer transactions.
		writers.Go(func() {
			for _, id := range some {
				if _, err := s.Create(t.Context(), &store.Create{
					Tenant: "acme", Conversation: &parleyv1.Conversation{Id: id},
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
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
		t.Error("the conversation was not swept")
	}
}
