package boltstore

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
)

// The limits of a store's writer.
const (
	maxQueued      = 4096
	maxQueuedBytes = 64 << 20
	maxBatch       = 512
	maxBatchBytes  = 16 << 20
)

// limits bound what may wait and what goes into one transaction.
type limits struct {
	operations, bytes int
	batch, batchBytes int
}

// errUnchanged ends a transaction in which nothing was written.
var errUnchanged = errors.New("nothing to commit")

// writer makes operations durable, in the order in which they come. It alone knows how: its
// goroutine takes whatever waits into the next transaction, without delay, so that many
// callers share a commit and a single one never waits for others.
type writer struct {
	db        *bolt.DB
	limits    limits
	begin     func(*bolt.Tx) *txn
	committed func(*txn)
	failed    func(error)

	mu      sync.Mutex
	changed sync.Cond // waiting or refusal
	waiting []*operation
	bytes   int   // of those that wait
	refusal error // why no operation is taken any more
	stopped chan struct{}
}

// operation is one write, from its caller to its answer.
type operation struct {
	ctx   context.Context
	size  int
	apply func(*txn) error
	taken atomic.Bool // by the writer, or by its caller, who has given up
	err   error
	done  chan struct{} // closed when err is the answer
}

// newWriter starts a writer. Begin makes what operations work on out of a transaction,
// committed is called after each commit and ahead of the answers, failed once if the writer
// cannot go on.
func newWriter(db *bolt.DB, l limits, begin func(*bolt.Tx) *txn, committed func(*txn), failed func(error)) *writer {
	w := &writer{db: db, limits: l, begin: begin, committed: committed, failed: failed, stopped: make(chan struct{})}
	w.changed.L = &w.mu
	go w.run()
	return w
}

// do has the writer apply an operation of about that many bytes, and returns when it is
// durable, or has failed and left no trace. If ctx ends before it was begun it never is;
// after that, do waits for its end.
func (w *writer) do(ctx context.Context, size int, apply func(*txn) error) error {
	op := &operation{ctx: ctx, size: size, apply: apply, done: make(chan struct{})}
	if err := w.submit(op); err != nil {
		return err
	}
	select {
	case <-op.done:
	case <-ctx.Done():
		if op.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-op.done
	}
	return op.err
}

func (w *writer) submit(op *operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal != nil {
		return w.refusal
	}
	if err := op.ctx.Err(); err != nil {
		return err
	}
	// One that is too large by itself is taken when nothing else waits.
	full := len(w.waiting) >= w.limits.operations || w.bytes+op.size > w.limits.bytes
	if full && len(w.waiting) > 0 {
		return fmt.Errorf("%w: %d writes of %d bytes wait", store.ErrOverloaded, len(w.waiting), w.bytes)
	}
	w.waiting, w.bytes = append(w.waiting, op), w.bytes+op.size
	w.changed.Signal()
	return nil
}

func (w *writer) run() {
	defer close(w.stopped)
	for batch := w.next(); batch != nil; batch = w.next() {
		w.commit(batch)
	}
}

// next waits for operations and takes as many as fit a batch; nil when no more will come.
func (w *writer) next() []*operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) == 0 && w.refusal == nil {
		w.changed.Wait()
	}
	n, size := 0, 0
	for n < min(len(w.waiting), w.limits.batch) && (n == 0 || size+w.waiting[n].size <= w.limits.batchBytes) {
		size += w.waiting[n].size
		n++
	}
	if n == 0 {
		return nil
	}
	batch := slices.Clone(w.waiting[:n])
	w.waiting, w.bytes = slices.Delete(w.waiting, 0, n), w.bytes-size
	return batch
}

// take begins the operation, unless its caller has gone.
func (o *operation) take() bool {
	if !o.taken.CompareAndSwap(false, true) {
		return false
	}
	if err := o.ctx.Err(); err != nil {
		o.answer(err)
		return false
	}
	return true
}

func (o *operation) answer(err error) {
	o.err = err
	close(o.done)
}

// commit makes a batch durable, and answers.
func (w *writer) commit(batch []*operation) {
	var t *txn
	var id int
	begun := make([]*operation, 0, len(batch))
	err := w.transact(func(tx *bolt.Tx) error {
		t, id = w.begin(tx), tx.ID()
		for _, op := range batch {
			if t.err == nil && op.take() {
				begun = append(begun, op)
				op.err = op.apply(t)
			}
		}
		return t.finish()
	})
	fatal := false
	switch {
	case err == nil:
		w.committed(t)
	case errors.Is(err, errUnchanged):
		err = nil
	case isFull(err) && w.undone(id):
		err = fmt.Errorf("%w: %w", store.ErrNoSpace, err)
	default:
		// What the disk holds now cannot be told, so nothing may be built upon it.
		fatal, err = true, fmt.Errorf("%w: %w", store.ErrFailed, err)
		w.refuse(err)
	}
	for _, op := range begun {
		if err != nil {
			op.err = err // Also what was refused: that was decided after writes that are not there.
		}
		op.answer(op.err)
	}
	if err != nil {
		for _, op := range batch {
			if op.take() {
				op.answer(err)
			}
		}
	}
	if fatal {
		w.failed(err)
	}
}

// transact runs a transaction. bbolt panics when it meets pages that make no sense.
func (w *writer) transact(write func(*bolt.Tx) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return w.db.Update(write)
}

// isFull reports whether a commit failed for want of space. Where bbolt grows the file it
// keeps only the text of the cause.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.HasSuffix(err.Error(), syscall.ENOSPC.Error())
}

// undone reports whether nothing is to be seen of the transaction: it failed before its
// last page was written, which is the one that makes it valid.
func (w *writer) undone(id int) bool {
	newest := id
	err := w.db.View(func(tx *bolt.Tx) error {
		newest = tx.ID()
		return nil
	})
	return err == nil && newest < id
}

// refuse ends the writer: what waits and what comes gets this error.
func (w *writer) refuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusal = err
	for _, op := range w.waiting {
		if op.taken.CompareAndSwap(false, true) {
			op.answer(err)
		}
	}
	w.waiting, w.bytes = nil, 0
	w.changed.Signal()
}

// close refuses what waits and waits for what was begun.
func (w *writer) close() {
	w.refuse(store.ErrClosed)
	<-w.stopped
}
