package boltstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// bench is a writer under test, with what it has done.
type bench struct {
	*writer
	t       *testing.T
	file    *os.File // under bbolt
	commits []int    // how many bytes each of them wrote
	failed  []error
}

// newBench starts a writer in a bubble of synctest, on a file of its own.
func newBench(t *testing.T, dir string, l limits) *bench {
	t.Helper()
	path := filepath.Join(dir, "parley.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(makeBuckets), db.Close()); err != nil {
		t.Fatal(err)
	}
	return openBench(t, path, l)
}

// openBench starts a writer on a file that is there.
func openBench(t *testing.T, path string, l limits) *bench {
	t.Helper()
	b := &bench{t: t}
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			var err error
			b.file, err = os.OpenFile(name, flag, mode)
			return b.file, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := store.Options{}.WithDefaults()
	b.writer = newWriter(db, &panicGuard{}, l,
		func(tx *bolt.Tx) *txn { return newTxn(tx, &o, newTally()) },
		func(x *txn) { b.commits = append(b.commits, x.writtenBytes) },
		func(err error) { b.failed = append(b.failed, err) })
	t.Cleanup(func() {
		b.close()
		if !b.stuck {
			db.Close()
		}
	})
	return b
}

// answer is what a call returns some time later.
type answer chan error

// start calls do in a goroutine, and returns when that waits.
func (b *bench) start(ctx context.Context, size int, apply func(*txn) error) answer {
	a := make(answer, 1)
	go func() { a <- b.do(ctx, size, apply) }()
	synctest.Wait()
	return a
}

// hold keeps the writer busy with an operation until it is released.
func (b *bench) hold() (release func(), a answer) {
	gate := make(chan struct{})
	a = b.start(b.t.Context(), 0, func(*txn) error {
		<-gate
		return nil
	})
	return func() { close(gate) }, a
}

// put is an operation that writes.
func put(key string) func(*txn) error {
	return func(t *txn) error {
		t.put(t.turns, []byte(key), []byte("value"))
		return nil
	}
}

func (b *bench) written() []string {
	var keys []string
	_ = b.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(turnsBucket)).ForEach(func(k, _ []byte) error {
			keys = append(keys, string(k))
			return nil
		})
	})
	return keys
}

var wide = limits{operations: 100, bytes: 100, batch: 100, batchBytes: 100}

func TestWriterTakesWhatWaits(t *testing.T) {
	dir := t.TempDir() // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dir, limits{operations: 100, bytes: 100, batch: 4, batchBytes: 20})
		release, held := b.hold()
		refused := errors.New("refused")
		var answers []answer
		for _, op := range []struct {
			key         string
			size, value int
			err         error
		}{
			{key: "a", value: 1},
			{key: "b", err: refused},
			{key: "c", value: 1}, // The fourth, with the one that held the writer: the batch is full.
			{key: "d", value: 2},
			{key: "e", size: 15, value: 2},
			{key: "f", size: 15, value: 2}, // So much came in that the batch is full.
			{key: "g", size: 40, value: 3}, // More than that by itself.
			{key: "h", value: 15},
			{key: "i", value: 15}, // So much is written that the batch is full.
			{key: "j", value: 5},
		} {
			answers = append(answers, b.start(t.Context(), op.size, func(x *txn) error {
				if op.err == nil {
					x.put(x.turns, []byte(op.key), make([]byte, op.value))
				}
				return op.err
			}))
		}
		release()
		if err := <-held; err != nil {
			t.Error(err)
		}
		for i, a := range answers {
			if err := <-a; !errors.Is(err, map[int]error{1: refused}[i]) {
				t.Errorf("operation %d: %v", i, err)
			}
		}
		if got, want := b.written(), []string{"a", "c", "d", "e", "f", "g", "h", "i", "j"}; !slices.Equal(got, want) {
			t.Errorf("written are %v, want %v", got, want)
		}
		if want := []int{2, 6, 3, 30, 5}; !slices.Equal(b.commits, want) {
			t.Errorf("commits of %v bytes, want %v", b.commits, want)
		}
	})
}

func TestWriterOverloaded(t *testing.T) {
	for name, l := range map[string]limits{
		"operations": {operations: 2, bytes: 100, batch: 100, batchBytes: 100},
		"bytes":      {operations: 100, bytes: 10, batch: 100, batchBytes: 100},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() // Not of the bubble.
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, dir, l)
				for range 2 {
					release, held := b.hold()
					first := b.start(t.Context(), 5, put("a"))
					second := b.start(t.Context(), 5, put("b"))
					if err := b.do(t.Context(), 1, put("c")); !errors.Is(err, store.ErrOverloaded) {
						t.Errorf("%v, want ErrOverloaded", err)
					}
					release()
					if err := errors.Join(<-held, <-first, <-second, b.do(t.Context(), 1000, put("large"))); err != nil {
						t.Error(err)
					}
				}
				if got, want := b.written(), []string{"a", "b", "large"}; !slices.Equal(got, want) {
					t.Errorf("written are %v, want %v", got, want)
				}
			})
		})
	}
}

func TestWriterCancelled(t *testing.T) {
	dir := t.TempDir() // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dir, wide)
		release, held := b.hold()
		ctx, cancel := context.WithCancel(t.Context())
		waiting := b.start(ctx, 1, put("waiting"))
		other := b.start(t.Context(), 1, put("other"))
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) { // While the writer is held.
			t.Errorf("%v, want context.Canceled", err)
		}
		if err := b.do(ctx, 1, put("late")); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
		release()
		if err := errors.Join(<-held, <-other); err != nil {
			t.Error(err)
		}

		ctx, cancel = context.WithCancel(t.Context())
		if err := b.do(ctx, 1, func(x *txn) error {
			cancel()
			return put("begun")(x)
		}); err != nil {
			t.Errorf("what was begun is seen through: %v", err)
		}
		if got, want := b.written(), []string{"begun", "other"}; !slices.Equal(got, want) {
			t.Errorf("written are %v, want %v", got, want)
		}
	})
}

// TestOperationTake is of a context that ends before the caller notices.
func TestOperationTake(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := &operation{ctx: ctx, done: make(chan struct{})}
	if o.claim() {
		t.Error("taken although its context has ended")
	}
	<-o.done
	if !errors.Is(o.err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", o.err)
	}
}

func TestWriterUndone(t *testing.T) {
	b := newBench(t, t.TempDir(), wide)
	var id int
	if err := b.do(t.Context(), 1, func(x *txn) error {
		id = x.turns.Tx().ID()
		return put("key")(x)
	}); err != nil {
		t.Fatal(err)
	}
	if isRolledBack(b.db, id) || !isRolledBack(b.db, id+1) {
		t.Errorf("transaction %d is undone: %v; the next one: %v", id, isRolledBack(b.db, id), isRolledBack(b.db, id+1))
	}
}

func TestWriterClose(t *testing.T) {
	dir := t.TempDir() // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dir, wide)
		gate := make(chan struct{})
		begun := b.start(t.Context(), 1, func(x *txn) error {
			<-gate
			return put("begun")(x)
		})
		waiting := b.start(t.Context(), 1, put("waiting"))
		closed := make(chan struct{})
		go func() {
			b.close()
			close(closed)
		}()
		if err := <-waiting; !errors.Is(err, store.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		select {
		case <-closed:
			t.Error("close did not wait for what was begun")
		default:
		}
		close(gate)
		if err := <-begun; err != nil {
			t.Errorf("what was begun is seen through: %v", err)
		}
		<-closed
		if err := b.do(t.Context(), 1, put("late")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		if got, want := b.written(), []string{"begun"}; !slices.Equal(got, want) {
			t.Errorf("written are %v, want %v", got, want)
		}
	})
}

// TestWaitingBytes looks at how large the store says that its writes are.
func TestWaitingBytes(t *testing.T) {
	path := newPath(t) // Not of the bubble.
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path, store.Options{})
		const large = 10_000
		content := strings.Repeat("x", large)
		if _, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: "source", Messages: []*parleyv1.Message{{Content: content}},
		}); err != nil {
			t.Fatal(err)
		}
		source, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "source", Newest: -1})
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{writer: s.writer, t: t}
		release, held := b.hold()
		var group sync.WaitGroup
		for i, write := range []func() error{
			func() error {
				_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "a", Messages: []*parleyv1.Message{{Content: content}, {Content: content}}})
				return err
			},
			func() error {
				_, err := s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{
					Id: "b", SystemPrompt: content,
				}, Messages: source.Messages})
				return err
			},
			func() error {
				_, err := s.Update(t.Context(), &store.Update{
					Tenant: "acme", ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: content + content},
				})
				return err
			},
		} {
			before := b.waitingBytes()
			group.Go(func() {
				if err := write(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if n := b.waitingBytes() - before; n < 2*large || n > 2*large+100 {
				t.Errorf("write %d waits with %d bytes, want about %d", i, n, 2*large)
			}
		}
		release()
		group.Wait()
		if err := <-held; err != nil {
			t.Error(err)
		}
		if n := b.waitingBytes(); n != 0 {
			t.Errorf("%d bytes are left of nothing that waits", n)
		}
	})
}

func (b *bench) waitingBytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queuedBytes
}
