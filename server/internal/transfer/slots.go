package transfer

import (
	"context"
	"sync"
	"time"
)

// largeSlots are the slots for large conversations, see maxLarge. Tenants get them in turn: of the imports of a tenant
// that wait, only one is in the queue of all tenants.
type largeSlots struct {
	slots chan struct{} // one element for each large conversation; imports get a free one in the order of their waits

	mu      sync.Mutex
	waiting map[string]*waitingTenant // only tenants with imports that wait
}

// waitingTenant is the queue of the imports of a tenant that wait for a slot.
type waitingTenant struct {
	first   chan struct{} // one element if an import of the tenant is in the queue of all tenants
	imports int           // largeSlots.mu guards it
}

func newLargeSlots(n int) *largeSlots {
	return &largeSlots{slots: make(chan struct{}, n), waiting: make(map[string]*waitingTenant)}
}

// acquire waits for a slot, at most for maxLargeWait. If there is none by then, the error is ErrTooManyImports. If ctx
// ends before, it is the cause of ctx.
func (l *largeSlots) acquire(ctx context.Context, tenant string) error {
	timer := time.NewTimer(maxLargeWait)
	defer timer.Stop()
	queue := l.join(tenant)
	defer l.leave(tenant)
	put := func(to chan<- struct{}) error {
		select {
		case to <- struct{}{}:
			return nil
		case <-timer.C:
			return ErrTooManyImports
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := put(queue.first); err != nil {
		return err
	}
	defer func() { <-queue.first }()
	return put(l.slots)
}

// release undoes a successful acquire.
func (l *largeSlots) release() { <-l.slots }

// join returns the queue of a tenant. The caller must leave it.
func (l *largeSlots) join(tenant string) *waitingTenant {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.waiting[tenant]
	if q == nil {
		q = &waitingTenant{first: make(chan struct{}, 1)}
		l.waiting[tenant] = q
	}
	q.imports++
	return q
}

// leave undoes join. It removes the queue of the tenant if no import waits in it.
func (l *largeSlots) leave(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.waiting[tenant]
	q.imports--
	if q.imports == 0 {
		delete(l.waiting, tenant)
	}
}
