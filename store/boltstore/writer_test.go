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
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// testWriter is a writer under test with its commits and failures.
type testWriter struct {
	*writer
	t        *testing.T
	file     *os.File // of bbolt
	commits  []int    // written bytes of each commit
	failures []error
}

// newTestWriter starts a writer on a new file, in a bubble of synctest.
func newTestWriter(t *testing.T, dir string, l limits) *testWriter {
	t.Helper()
	path := filepath.Join(dir, "parley.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(boltfile.MakeBuckets), db.Close()); err != nil {
		t.Fatal(err)
	}
	return openTestWriter(t, path, l)
}

// openTestWriter starts a writer on an existing file.
func openTestWriter(t *testing.T, path string, l limits) *testWriter {
	t.Helper()
	b := &testWriter{t: t}
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
	b.writer = newWriter(db, &boltfile.PanicGuard{}, l,
		func(tx *bolt.Tx) *txn { return newTxn(tx, &o, newTally(0), journaled{}) },
		func(x *txn) { b.commits = append(b.commits, x.writtenBytes) },
		func(err error) { b.failures = append(b.failures, err) })
	b.writer.start(nil)
	t.Cleanup(func() {
		b.close()
		if !b.stuck {
			db.Close()
		}
	})
	return b
}

// pending is the future result of a call.
type pending chan error

// start calls do in a goroutine, and returns when that goroutine is blocked.
func (b *testWriter) start(ctx context.Context, tenant string, size int, apply func(*txn) error) pending {
	a := make(pending, 1)
	go func() { a <- b.do(ctx, tenant, size, apply) }()
	synctest.Wait()
	return a
}

// block blocks the writer with an operation until release is called.
func (b *testWriter) block() (release func(), a pending) {
	gate := make(chan struct{})
	a = b.start(b.t.Context(), "acme", 0, func(*txn) error {
		<-gate
		return nil
	})
	return func() { close(gate) }, a
}

// put returns an operation that writes a key.
func put(key string) func(*txn) error {
	return func(t *txn) error {
		t.put(t.turns, []byte(key), []byte("value"))
		return nil
	}
}

func (b *testWriter) keys() []string {
	var keys []string
	_ = b.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(layout.TurnsBucket)).ForEach(func(k, _ []byte) error {
			keys = append(keys, string(k))
			return nil
		})
	})
	return keys
}

var wideLimits = limits{operations: 100, bytes: 100, batch: 100, batchBytes: 100}

func TestWriterBatches(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, limits{operations: 100, bytes: 100, batch: 4, batchBytes: 20})
		release, held := b.block()
		refused := errors.New("refused")
		var answers []pending
		for _, op := range []struct {
			key         string
			size, value int
			err         error
		}{
			{key: "a", value: 1},
			{key: "b", err: refused},
			{key: "c", value: 1}, // The fourth operation, with the blocking one: the batch is full.
			{key: "d", value: 2},
			{key: "e", size: 15, value: 2},
			{key: "f", size: 15, value: 2}, // The sizes of the operations fill the batch.
			{key: "g", size: 40, value: 3}, // Larger than a batch by itself.
			{key: "h", value: 15},
			{key: "i", value: 15}, // The written values fill the batch.
			{key: "j", value: 5},
		} {
			answers = append(answers, b.start(t.Context(), "acme", op.size, func(x *txn) error {
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
				t.Errorf("operation %d = %v", i, err)
			}
		}
		if got, want := b.keys(), []string{"a", "c", "d", "e", "f", "g", "h", "i", "j"}; !slices.Equal(got, want) {
			t.Errorf("written keys = %v, want %v", got, want)
		}
		if want := []int{2, 6, 3, 30, 5}; !slices.Equal(b.commits, want) {
			t.Errorf("commits have %v bytes, want %v", b.commits, want)
		}
	})
}

func TestWriterOverloaded(t *testing.T) {
	for name, l := range map[string]limits{
		"operations": {operations: 2, bytes: 100, batch: 100, batchBytes: 100},
		"bytes":      {operations: 100, bytes: 10, batch: 100, batchBytes: 100},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() // Created outside of the bubble.
			synctest.Test(t, func(t *testing.T) {
				b := newTestWriter(t, dir, l)
				for range 2 {
					release, held := b.block()
					first := b.start(t.Context(), "acme", 5, put("a"))
					second := b.start(t.Context(), "acme", 5, put("b"))
					if err := b.do(t.Context(), "acme", 1, put("c")); !errors.Is(err, store.ErrOverloaded) {
						t.Errorf("operation = %v, want ErrOverloaded", err)
					}
					release()
					if err := errors.Join(<-held, <-first, <-second, b.do(t.Context(), "acme", 1000, put("large"))); err != nil {
						t.Error(err)
					}
				}
				if got, want := b.keys(), []string{"a", "b", "large"}; !slices.Equal(got, want) {
					t.Errorf("written keys = %v, want %v", got, want)
				}
			})
		})
	}
}

func TestWriterCancelled(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, wideLimits)
		release, held := b.block()
		ctx, cancel := context.WithCancel(t.Context())
		waiting := b.start(ctx, "acme", 1, put("waiting"))
		other := b.start(t.Context(), "acme", 1, put("other"))
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) { // The writer is still blocked.
			t.Errorf("queued operation = %v, want Canceled", err)
		}
		if err := b.do(ctx, "acme", 1, put("late")); !errors.Is(err, context.Canceled) {
			t.Errorf("operation with an ended context = %v, want Canceled", err)
		}
		release()
		if err := errors.Join(<-held, <-other); err != nil {
			t.Error(err)
		}

		ctx, cancel = context.WithCancel(t.Context())
		if err := b.do(ctx, "acme", 1, func(x *txn) error {
			cancel()
			return put("started")(x)
		}); err != nil {
			t.Errorf("operation that had started = %v, want it completed", err)
		}
		if got, want := b.keys(), []string{"other", "started"}; !slices.Equal(got, want) {
			t.Errorf("written keys = %v, want %v", got, want)
		}
	})
}

// TestOperationClaim claims an operation whose context has ended before its caller gave up.
func TestOperationClaim(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := &operation{ctx: ctx, done: make(chan struct{})}
	if o.claim() {
		t.Error("claim = true, although the context has ended")
	}
	<-o.done
	if !errors.Is(o.err, context.Canceled) {
		t.Errorf("error of the operation = %v, want Canceled", o.err)
	}
}

func TestWriterRolledBack(t *testing.T) {
	b := newTestWriter(t, t.TempDir(), wideLimits)
	var id int
	if err := b.do(t.Context(), "acme", 1, func(x *txn) error {
		id = x.turns.Tx().ID()
		return put("key")(x)
	}); err != nil {
		t.Fatal(err)
	}
	if boltfile.IsRolledBack(b.db, id) || !boltfile.IsRolledBack(b.db, id+1) {
		t.Errorf("IsRolledBack of transaction %d = %v, of the next one %v", id, boltfile.IsRolledBack(b.db, id),
			boltfile.IsRolledBack(b.db, id+1))
	}
}

func TestWriterClose(t *testing.T) {
	dir := t.TempDir() // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		b := newTestWriter(t, dir, wideLimits)
		gate := make(chan struct{})
		started := b.start(t.Context(), "acme", 1, func(x *txn) error {
			<-gate
			return put("started")(x)
		})
		waiting := b.start(t.Context(), "acme", 1, put("waiting"))
		closed := make(chan struct{})
		go func() {
			b.close()
			close(closed)
		}()
		if err := <-waiting; !errors.Is(err, store.ErrClosed) {
			t.Errorf("queued operation = %v, want ErrClosed", err)
		}
		select {
		case <-closed:
			t.Error("close did not wait for the running operation")
		default:
		}
		close(gate)
		if err := <-started; err != nil {
			t.Errorf("running operation = %v, want it completed", err)
		}
		<-closed
		if err := b.do(t.Context(), "acme", 1, put("late")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("operation after close = %v, want ErrClosed", err)
		}
		if got, want := b.keys(), []string{"started"}; !slices.Equal(got, want) {
			t.Errorf("written keys = %v, want %v", got, want)
		}
	})
}

// TestQueuedBytes checks the sizes of the store's operations in the queue.
func TestQueuedBytes(t *testing.T) {
	path := newPath(t) // Created outside of the bubble.
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
		b := &testWriter{writer: s.writer, t: t}
		release, held := b.block()
		var group sync.WaitGroup
		for i, write := range []func() error{
			func() error {
				_, err := s.Append(t.Context(), &store.Append{
					Tenant: "acme", ConversationID: "a", Messages: []*parleyv1.Message{{Content: content}, {Content: content}},
				})
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
					Tenant: "acme", ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{
						Title: content + content,
					},
				})
				return err
			},
		} {
			before := b.queuedBytesNow()
			group.Go(func() {
				if err := write(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if n := b.queuedBytesNow() - before; n < 2*large || n > 2*large+100 {
				t.Errorf("write %d adds %d bytes to the queue, want about %d", i, n, 2*large)
			}
		}
		release()
		group.Wait()
		if err := <-held; err != nil {
			t.Error(err)
		}
		if n := b.queuedBytesNow(); n != 0 {
			t.Errorf("%d bytes are queued, want 0 for an empty queue", n)
		}
	})
}

func (b *testWriter) queuedBytesNow() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.Bytes()
}
