package boltstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
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
// goroutine takes whatever waits into one transaction after the other, without delay, so that many
// callers share a commit and a single one never waits for others.
type writer struct {
	db          *bolt.DB
	guard       *panicGuard
	limits      limits
	newTxn      func(*bolt.Tx) *txn
	afterCommit func(*txn)
	onFailure   func(error)

	mu          sync.Mutex
	changed     sync.Cond // waiting or refusal
	queue       []*operation
	queuedBytes int   // of those that wait
	closeErr    error // why no operation is taken any more
	stopped     chan struct{}

	// These belong to the writer's goroutine.
	refuseFrom int   // no operation that yields and writes as much fits the disk, see txn.yield
	broken     error // why the writer cannot continue
	stuck      bool  // a transaction cannot be ended: closing the file would wait for it for ever
}

// operation is one write, from its caller to its answer.
type operation struct {
	ctx     context.Context
	size    int
	apply   func(*txn) error // runs again if the first time left nothing behind
	claimed atomic.Bool      // by the writer, or by its caller, who has given up
	err     error
	done    chan struct{} // closed when err is the answer
}

// newWriter starts a writer. Begin makes what operations work on out of a transaction,
// committed is called after each commit, also one of nothing, and ahead of the answers, failed
// once if the writer cannot go on.
func newWriter(db *bolt.DB, g *panicGuard, l limits, begin func(*bolt.Tx) *txn, committed func(*txn), failed func(error)) *writer {
	w := &writer{db: db, guard: g, limits: l, newTxn: begin, afterCommit: committed, onFailure: failed, stopped: make(chan struct{})}
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
		if op.claimed.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-op.done
	}
	return op.err
}

func (w *writer) submit(op *operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closeErr != nil {
		return w.closeErr
	}
	if err := op.ctx.Err(); err != nil {
		return err
	}
	// One that is too large by itself is taken when nothing else waits.
	full := len(w.queue) >= w.limits.operations || w.queuedBytes+op.size > w.limits.bytes
	if full && len(w.queue) > 0 {
		return fmt.Errorf("%w: %d writes of %d bytes wait", store.ErrOverloaded, len(w.queue), w.queuedBytes)
	}
	w.queue, w.queuedBytes = append(w.queue, op), w.queuedBytes+op.size
	w.changed.Signal()
	return nil
}

func (w *writer) run() {
	defer close(w.stopped)
	for w.waitForWork() {
		w.refuseFrom = math.MaxInt
		w.answer(w.commit(w.dequeueAll))
	}
}

// settle answers the operations of a transaction. If the transaction failed without an effect, its
// operations are applied again in halves, so that only those that cause the failure fail.
func (w *writer) answer(batch []*operation, err error) {
	if len(batch) > 1 && (errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrCorrupt)) {
		middle := len(batch) / 2
		for _, half := range [][]*operation{batch[:middle], batch[middle:]} {
			for len(half) > 0 {
				done, err := w.commit(slices.Values(half))
				w.answer(done, err)
				half = half[len(done):]
			}
		}
		return
	}
	for _, op := range batch {
		op.answer(err)
	}
}

// wait waits for operations; false when no more will come.
func (w *writer) waitForWork() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) == 0 && w.closeErr == nil {
		w.changed.Wait()
	}
	return len(w.queue) > 0
}

// queued yields what waits, and what comes meanwhile, until nothing does.
func (w *writer) dequeueAll(yield func(*operation) bool) {
	for op := w.dequeue(); op != nil && yield(op); {
		op = w.dequeue()
	}
}

// next takes the operation that has waited longest; nil when none waits.
func (w *writer) dequeue() *operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 {
		op := w.queue[0]
		w.queue[0] = nil
		w.queue, w.queuedBytes = w.queue[1:], w.queuedBytes-op.size
		if op.claim() {
			return op
		}
	}
	return nil
}

// take begins the operation, unless its caller has gone.
func (o *operation) claim() bool {
	if !o.claimed.CompareAndSwap(false, true) {
		return false
	}
	if err := o.ctx.Err(); err != nil {
		o.answer(err)
		return false
	}
	return true
}

// answer lets the caller go with the error of the transaction, or with the operation's own.
func (o *operation) answer(err error) {
	if err != nil {
		o.err = err // Also what was refused: that was decided after writes that are not there.
	}
	close(o.done)
}

// try applies an operation. If bbolt panics before the operation has changed anything, that is
// the operation's own error. After that, it ends the transaction.
func (w *writer) runOperation(o *operation, t *txn) error {
	before := t.mutations
	err := w.guard.do(func() error { return o.apply(t) })
	if errors.Is(err, store.ErrCorrupt) && t.mutations != before {
		t.fail(err)
	}
	return err
}

// commit makes operations durable, as many as one transaction takes, and returns them. An
// error is for all of them; without one, each has its own.
func (w *writer) commit(operations iter.Seq[*operation]) (batch []*operation, err error) {
	if w.broken != nil {
		return slices.Collect(operations), w.broken
	}
	var t *txn
	var id int
	err = w.transact(func(tx *bolt.Tx) error {
		id = tx.ID()
		// What they write may be far more than what came in, and the other way round.
		size := 0
		for op := range operations {
			batch, size = append(batch, op), size+op.size
			if t == nil {
				t = w.newTxn(tx)
				t.refuseFrom = w.refuseFrom
			}
			op.err = w.runOperation(op, t)
			if t.err != nil || len(batch) >= w.limits.batch || max(size, t.writtenBytes) >= w.limits.batchBytes {
				break
			}
		}
		if t == nil {
			return errUnchanged
		}
		return t.finish()
	})
	switch {
	case err == nil, errors.Is(err, errUnchanged):
		if t != nil {
			w.afterCommit(t)
		}
		return batch, nil
	case isFull(err) && isRolledBack(w.db, id):
		if len(batch) == 1 {
			w.refuseFrom = min(w.refuseFrom, t.spaceNeeded)
		}
		return batch, fmt.Errorf("%w: %w", store.ErrNoSpace, err)
	case errors.Is(err, store.ErrCorrupt) && len(batch) > 0 && isRolledBack(w.db, id):
		return batch, err
	}
	// What the disk holds now cannot be told, so nothing may be built upon it.
	w.broken = fmt.Errorf("%w: %w", store.ErrFailed, err)
	w.stop(w.broken)
	w.onFailure(w.broken)
	return batch, w.broken
}

// transact runs a transaction. A panic that leaves the store intact is store.ErrCorrupt, and the
// transaction is rolled back; any other panic is not, and the writer must not continue.
//
// While write runs, bbolt changes only what belongs to the transaction. Its commit then rebalances
// and spills, which reads pages beside those that were written and may panic as well. The file is
// as before then, but pages were allocated and freed in memory: Update rolls that back and reads the
// list of free pages again. Any other panic of a commit, such as "page 7 already freed", says that
// this list does not match the tree: the next commit could overwrite pages that are in use. If the
// rollback panics too, nothing in memory can be trusted, and bbolt may keep the lock of the
// transaction, so that closing the file would wait for ever.
func (w *writer) transact(write func(*bolt.Tx) error) error {
	var tx *bolt.Tx
	committing := false
	err := w.guard.do(func() error {
		return w.db.Update(func(t *bolt.Tx) error {
			tx = t
			err := w.guard.do(func() error { return write(t) })
			committing = err == nil
			return err
		})
	})
	if tx != nil && tx.DB() != nil {
		// Only a rollback that panicked leaves it open. This one may panic at the same place.
		err = errors.New("roll back: " + errors.Join(err, w.guard.do(tx.Rollback)).Error())
		w.stuck = tx.DB() != nil
		return err
	}
	var p *panicError
	panicked := errors.As(err, &p)
	if panicked && tx == nil {
		w.stuck = true
		return errors.New("begin: " + err.Error())
	}
	if panicked && committing && !p.isRead() {
		return errors.New("commit: " + err.Error())
	}
	return err
}

// panicError is a panic within bbolt, which is store.ErrCorrupt.
type panicError struct {
	cause any
	stack []byte
}

func (e *panicError) Error() string {
	return fmt.Sprintf("%v: panic: %v\n%s", store.ErrCorrupt, e.cause, e.stack)
}

func (e *panicError) Unwrap() error { return store.ErrCorrupt }

// isRead reports whether bbolt panicked while it read a page: at a memory fault, an index out of range,
// or a page that is not what it should be.
func (e *panicError) isRead() bool {
	if _, ok := e.cause.(runtime.Error); ok {
		return true
	}
	text := fmt.Sprint(e.cause)
	return slices.ContainsFunc([]string{
		"invalid page type", "unexpected type/flags", "Page expected to be", "read: zero-length",
	}, func(part string) bool { return strings.Contains(text, part) })
}

// guard calls what works on the pages of bbolt. The zero value is usable.
type panicGuard struct {
	panicked atomic.Bool // the file is damaged
}

// do calls do, and makes a panic store.ErrCorrupt: bbolt panics when it meets pages that make
// no sense, or reads where there are none. That cannot be told from a mistake of this package but
// by the stack.
func (g *panicGuard) do(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			g.panicked.Store(true)
			err = &panicError{cause: cause, stack: debug.Stack()}
		}
	}()
	return do()
}

// isFull reports whether a commit failed for want of space, on the disk or in a quota. Where
// bbolt grows the file it keeps only the text of the cause.
func isFull(err error) bool {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, cause) || strings.HasSuffix(err.Error(), cause.Error()) {
			return true
		}
	}
	return false
}

// undone reports whether nothing is to be seen of the transaction: it failed before its
// last page was written, which is the one that makes it valid.
func isRolledBack(db *bolt.DB, id int) bool {
	newest := id
	err := db.View(func(tx *bolt.Tx) error {
		newest = tx.ID()
		return nil
	})
	return err == nil && newest < id
}

// refuse ends the writer: what waits and what comes gets this error. Once closed it stays
// closed.
func (w *writer) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !errors.Is(w.closeErr, store.ErrClosed) {
		w.closeErr = err
	}
	for _, op := range w.queue {
		if op.claimed.CompareAndSwap(false, true) {
			op.answer(err)
		}
	}
	w.queue, w.queuedBytes = nil, 0
	w.changed.Signal()
}

// close refuses what waits and waits for what was begun.
func (w *writer) close() {
	w.stop(store.ErrClosed)
	<-w.stopped
}
