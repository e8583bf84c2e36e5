package boltstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhq/parley/store"
)

// putSized returns an operation that writes a value of n bytes under a key.
func putSized(key string, n int) func(*txn) error {
	return func(t *txn) error {
		t.put(t.turns, []byte(key), make([]byte, n))
		return nil
	}
}

// TestWriterTakesTurns floods the writer with operations of one tenant. Each transaction has one turn of each
// tenant, as far as the maximum size allows. Once the other tenants have written nothing for a while, a
// transaction takes all that is queued.
func TestWriterTakesTurns(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, limits{
			operations: 100, bytes: 100 << 10, batch: 100, batchBytes: 100 << 10,
			quantum: 1000 + 2*mutationCost, sharedBatchBytes: 2000, // an operation each turn
		})
		var order []string
		start := func(tenant, key string) pending {
			return b.start(t.Context(), tenant, 1, func(x *txn) error {
				order = append(order, key)
				return putSized(key, 1000)(x)
			})
		}
		release, held := b.block()
		var answers []pending
		for _, key := range []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7"} {
			answers = append(answers, start("acme", key))
		}
		answers = append(answers, start("quiet", "q1"), start("quiet", "q2"), start("rare", "r1"))
		release()
		for _, a := range append(answers, held) {
			if err := <-a; err != nil {
				t.Error(err)
			}
		}
		if want := []string{"a1", "q1", "r1", "a2", "q2", "a3", "a4", "a5", "a6", "a7"}; !slices.Equal(order, want) {
			t.Errorf("order of operations = %v, want %v", order, want)
		}
		if want := []int{2000, 1000, 2000, 1000, 1000, 1000, 1000, 1000}; !slices.Equal(b.commits, want) {
			t.Errorf("commits have %v bytes, want %v", b.commits, want)
		}
		order = nil
		release, held = b.block()
		<-time.After(time.Minute) // Of the bubble's clock: acme writes alone again.
		for _, key := range []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7"} {
			answers = append(answers, start("acme", key))
		}
		before := len(b.commits)
		release()
		synctest.Wait()
		if n := len(b.commits) - before; n != 1 {
			t.Errorf("a tenant that writes alone has %d commits, want one with all operations", n)
		}
		if err := <-held; err != nil {
			t.Error(err)
		}
	})
}

// TestWriterFloodedQueue fills the queue with operations of one tenant. Another tenant's operation is
// accepted, and the newest of the first tenant is refused.
func TestWriterFloodedQueue(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, limits{operations: 3, bytes: 100, batch: 100, batchBytes: 100})
		release, held := b.block()
		first := b.start(t.Context(), "acme", 1, put("a1"))
		second := b.start(t.Context(), "acme", 1, put("a2"))
		third := b.start(t.Context(), "acme", 1, put("a3"))
		if err := b.do(t.Context(), "acme", 1, put("a4")); !errors.Is(err, store.ErrOverloaded) {
			t.Errorf("operation of the tenant that fills the queue = %v, want ErrOverloaded", err)
		}
		quiet := b.start(t.Context(), "quiet", 1, put("q1"))
		if err := <-third; !errors.Is(err, store.ErrOverloaded) {
			t.Errorf("newest operation of that tenant = %v, want ErrOverloaded", err)
		}
		release()
		if err := errors.Join(<-held, <-first, <-second, <-quiet); err != nil {
			t.Error(err)
		}
		if got, want := b.keys(), []string{"a1", "a2", "q1"}; !slices.Equal(got, want) {
			t.Errorf("written keys = %v, want %v", got, want)
		}
	})
}

// TestSweepWithTurns checks that a sweep is not a tenant: the transactions of the only tenant stay long.
func TestSweepWithTurns(t *testing.T) {
	path := newPath(t) // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path, store.Options{TTL: time.Minute})
		appendTo(t, s, "a", "hello")
		<-time.After(time.Hour) // Of the bubble's clock.
		if _, err := s.Sweep(context.WithoutCancel(t.Context()), 10); err != nil {
			t.Fatal(err)
		}
		appendTo(t, s, "b", "hello")
		if s.writer.sharing.Shared() {
			t.Error("a sweep counts as another tenant")
		}
	})
}
