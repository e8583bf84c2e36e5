package boltstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/fairqueue"
)

// Limits of a store's writer.
const (
	maxQueued      = 4096
	maxQueuedBytes = 64 << 20
	maxBatch       = 512
	maxBatchBytes  = 16 << 20
	// While several tenants write, a transaction takes sharedQuantum of each of them, and at most
	// sharedBatchBytes. A caller waits for the end of a transaction and then for its own, so both are
	// short.
	sharedBatchBytes = 128 << 10
	sharedQuantum    = 32 << 10
	// mutationCost is the cost of a change to the file, in addition to the bytes of its value.
	mutationCost = 512
)

// limits are the maximum queue and the maximum transaction, each in operations and in bytes.
type limits struct {
	operations, bytes         int
	batch, batchBytes         int
	quantum, sharedBatchBytes int // while several tenants write
}

// writer makes operations durable, appends to a conversation in the order of their submission. It takes them from the
// tenants in turn, see package fairqueue. Its goroutine commits all queued operations together, one commit after the
// other, without delay: those that the journal can take as a batch of the journal, the others in a transaction. So
// many callers share a commit, and a single caller never waits for others. While several tenants write, a commit
// takes a limited part of each: no tenant waits for all that another has queued.
type writer struct {
	db          *bolt.DB
	guard       *boltfile.PanicGuard
	limits      limits
	newTxn      func(*bolt.Tx) *txn
	afterCommit func(*txn)
	onFailure   func(error)

	mu       sync.Mutex
	changed  sync.Cond // signals a change of queue or closeErr
	queue    *fairqueue.Queue[*operation]
	sharing  fairqueue.Sharing
	closeErr error // error of all further operations; nil while the writer accepts them
	stopped  chan struct{}
	working  sync.Mutex // locked while operations run: another holder sees a state between two batches

	// These fields belong to the writer's goroutine.
	refuseFrom int   // size from which values do not fit on the disk, see txn.checkSpace
	broken     error // permanent failure
	stuck      bool  // a transaction cannot be ended, so closing the file would block forever
}

// operation is one write of a caller.
type operation struct {
	ctx    context.Context
	tenant string
	queued time.Time // when it was submitted
	size   int
	cost   int              // of its last run, in bytes, for the turns of tenants
	apply  func(*txn) error // may run again after a transaction that was rolled back
	// log decides the operation for the journal, or returns errNotJournaled. Nil if only a transaction can decide it.
	log          func(*txn) error
	onQueued     func()      // called when the operation is in the queue; may be nil
	conversation string      // its key in ids; empty if the operation is not about one conversation
	claimed      atomic.Bool // by the writer, or by its caller, which then gives up
	err          error
	done         chan struct{} // closed when err is final
}

// newWriter returns a writer that start must start. begin makes the transaction on which operations work. committed
// is called after each commit, also one without changes, before the callers get their results. failed is called once
// if the writer fails permanently.
func newWriter(db *bolt.DB, g *boltfile.PanicGuard, l limits, begin func(*bolt.Tx) *txn, committed func(*txn),
	failed func(error),
) *writer {
	w := &writer{
		db: db, guard: g, limits: l, newTxn: begin, afterCommit: committed, onFailure: failed, stopped: make(chan struct{}),
		queue: fairqueue.New[*operation](fairqueue.Limits{Items: l.operations, Bytes: l.bytes, Quantum: l.quantum}),
	}
	w.changed.L = &w.mu
	return w
}

// start starts the writer's goroutine. journal writes those of the operations that need no transaction to the journal
// and answers them, and returns the others. It is nil if the store has no journal.
func (w *writer) start(journal func(iter.Seq[*operation]) []*operation) { go w.run(journal) }

// do makes the writer apply an operation of a tenant, of about size bytes. It returns when the operation is durable,
// or has failed without an effect. If ctx ends before the operation starts, the operation never runs. If ctx ends
// later, do waits for the end of the operation.
func (w *writer) do(ctx context.Context, tenant string, size int, apply func(*txn) error) error {
	return w.await(&operation{ctx: ctx, tenant: tenant, size: size, apply: apply})
}

// await submits an operation and waits for its end as do does.
func (w *writer) await(op *operation) error {
	op.queued, op.done = time.Now(), make(chan struct{})
	if err := w.submit(op); err != nil {
		return err
	}
	if op.onQueued != nil {
		op.onQueued()
	}
	select {
	case <-op.done:
	case <-op.ctx.Done():
		if op.claimed.CompareAndSwap(false, true) {
			return op.ctx.Err()
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
	dropped, ok := w.queue.Push(op.tenant, op.size, op)
	for _, other := range dropped {
		other.refuse(fmt.Errorf("%w: the queue is full, and the tenant has most of it", store.ErrOverloaded))
	}
	if !ok {
		return fmt.Errorf("%w: %d writes of %d bytes are queued", store.ErrOverloaded, w.queue.Len(), w.queue.Bytes())
	}
	w.sharing.Add(op.tenant)
	w.changed.Signal()
	return nil
}

func (w *writer) run(journal func(iter.Seq[*operation]) []*operation) {
	defer close(w.stopped)
	for w.waitForWork() {
		w.working.Lock()
		w.refuseFrom = math.MaxInt
		if journal == nil {
			w.answer(w.commit(w.dequeueAll))
		} else {
			w.commitAll(journal(w.dequeueAll))
		}
		w.working.Unlock()
	}
}

// commitAll commits operations in as many transactions as they need.
func (w *writer) commitAll(operations []*operation) {
	for len(operations) > 0 {
		done, err := w.commit(slices.Values(operations))
		w.answer(done, err)
		operations = operations[len(done):]
	}
}

// answer finishes the operations of a transaction. If the transaction was rolled back, answer
// commits its operations again in halves, so that only those that cause the failure fail.
func (w *writer) answer(batch []*operation, err error) {
	if len(batch) > 1 && (errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrCorrupt)) {
		middle := len(batch) / 2
		w.commitAll(batch[:middle])
		w.commitAll(batch[middle:])
		return
	}
	for _, op := range batch {
		op.answer(err)
	}
}

// waitForWork waits for queued operations. It returns false if no more will come.
func (w *writer) waitForWork() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.queue.Len() == 0 && w.closeErr == nil {
		w.changed.Wait()
	}
	return w.queue.Len() > 0
}

// dequeueAll yields the queued operations, including those that are queued during the loop, until
// the queue is empty. While several tenants write, it stops when each of them has had its turn.
func (w *writer) dequeueAll(yield func(*operation) bool) {
	for op := w.dequeue(nil); op != nil; op = w.dequeue(op) {
		if !yield(op) {
			w.mu.Lock()
			w.queue.Charge(op.tenant, op.cost)
			w.mu.Unlock()
			return
		}
	}
}

// dequeue charges the previous operation of the transaction to its tenant; it is nil for the first. dequeue
// claims the next operation in turn, or returns nil if the transaction should take no more.
func (w *writer) dequeue(previous *operation) *operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	if previous != nil {
		w.queue.Charge(previous.tenant, previous.cost)
	}
	nextRound := previous == nil || !w.sharing.Shared()
	for {
		op, ok := w.queue.Pop(nextRound)
		if !ok {
			return nil
		}
		if op.claim() {
			return op
		}
	}
}

// batchBytes returns the maximum size of a transaction.
func (w *writer) batchBytes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sharing.Shared() {
		return w.limits.sharedBatchBytes
	}
	return w.limits.batchBytes
}

// claim starts the operation. It returns false if the caller has given up.
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

// refuse answers a queued operation with an error, unless its caller has given up.
func (o *operation) refuse(err error) {
	if o.claimed.CompareAndSwap(false, true) {
		o.answer(err)
	}
}

// answer reports to the caller the error of the transaction, or that of the operation.
func (o *operation) answer(err error) {
	if err != nil {
		o.err = err // Also for a refused operation: it was refused because of writes that are rolled back.
	}
	close(o.done)
}

// runOperation applies an operation. If bbolt panics before the operation has changed anything, the
// panic is the operation's own error. A later panic ends the transaction.
func (w *writer) runOperation(o *operation, t *txn) error {
	before, written := t.mutations, t.writtenBytes
	err := w.guard.Do(func() error { return o.apply(t) })
	o.cost = max(o.size, t.writtenBytes-written) + mutationCost*(1+t.mutations-before)
	if errors.Is(err, store.ErrCorrupt) && t.mutations != before {
		t.fail(err)
	}
	return err
}

// commit makes operations durable, as many as fit into one transaction, and returns them. An error is the result of
// all of them. Without an error, each has its own result.
func (w *writer) commit(operations iter.Seq[*operation]) (batch []*operation, err error) {
	if w.broken != nil {
		return slices.Collect(operations), w.broken
	}
	var t *txn
	var id int
	began := time.Now()
	err = w.transact(func(tx *bolt.Tx) error {
		id = tx.ID()
		// The written bytes may be far more or far less than the size of the operations.
		size := 0
		for op := range operations {
			batch, size = append(batch, op), size+op.size
			if t == nil {
				t = w.newTxn(tx)
				t.refuseFrom = w.refuseFrom
			}
			op.err = w.runOperation(op, t)
			if t.err != nil || len(batch) >= w.limits.batch || max(size, t.writtenBytes) >= w.batchBytes() {
				break
			}
		}
		if t == nil {
			return boltfile.ErrUnchanged
		}
		return t.finish()
	})
	switch {
	case err == nil, errors.Is(err, boltfile.ErrUnchanged):
		if t != nil {
			if err == nil {
				t.commit = describeCommit(batch, began)
			}
			w.afterCommit(t)
		}
		return batch, nil
	case boltfile.IsFull(err) && boltfile.IsRolledBack(w.db, id):
		t.undo()
		if len(batch) == 1 {
			w.refuseFrom = min(w.refuseFrom, t.spaceNeeded)
		}
		return batch, fmt.Errorf("%w: %w", store.ErrNoSpace, err)
	case errors.Is(err, store.ErrCorrupt) && len(batch) > 0 && boltfile.IsRolledBack(w.db, id):
		t.undo()
		return batch, err
	}
	w.breakDown(fmt.Errorf("%w: %w", store.ErrFailed, err))
	return batch, w.broken
}

// breakDown makes the writer fail permanently: the state of the disk is unknown, so no further write may depend on it.
func (w *writer) breakDown(err error) {
	w.broken = err
	w.stop(err)
	w.onFailure(err)
}

// transact runs a transaction. If bbolt panics and the store stays intact, the error is store.ErrCorrupt and the
// transaction is rolled back. Any other panic is another error, and the writer must not continue.
//
// While write runs, bbolt changes only data of the transaction. The commit then rebalances and
// spills: it reads pages beside the written ones and may panic, too. The file is unchanged in that
// case. In memory, pages were allocated and freed: Update rolls that back and reads the list of
// free pages again. Any other panic of a commit, such as "page 7 already freed", shows that this
// list does not match the tree: the next commit could overwrite pages in use. If the rollback
// panics as well, the state in memory is unreliable, and bbolt may keep the lock of the
// transaction, so that closing the file would block forever.
func (w *writer) transact(write func(*bolt.Tx) error) error {
	var tx *bolt.Tx
	committing := false
	err := w.guard.Do(func() error {
		return w.db.Update(func(t *bolt.Tx) error {
			tx = t
			err := w.guard.Do(func() error { return write(t) })
			committing = err == nil
			return err
		})
	})
	if tx != nil && tx.DB() != nil {
		// Only a rollback that panicked leaves the transaction open. This rollback may panic at the
		// same place.
		err = errors.New("roll back: " + errors.Join(err, w.guard.Do(tx.Rollback)).Error())
		w.stuck = tx.DB() != nil
		return err
	}
	var p *boltfile.PanicError
	panicked := errors.As(err, &p)
	if panicked && tx == nil {
		w.stuck = true
		return errors.New("begin: " + err.Error())
	}
	if panicked && committing && !p.IsRead() {
		return errors.New("commit: " + err.Error())
	}
	return err
}

// stop ends the writer: queued and later operations get this error. After a close the error stays
// store.ErrClosed.
func (w *writer) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !errors.Is(w.closeErr, store.ErrClosed) {
		w.closeErr = err
	}
	for _, op := range w.queue.Clear() {
		op.refuse(err)
	}
	w.changed.Signal()
}

// close refuses the queued operations and waits for those that have started.
func (w *writer) close() {
	w.stop(store.ErrClosed)
	<-w.stopped
}
