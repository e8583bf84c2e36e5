// Package fairqueue queues the operations of many tenants and takes them from the tenants in turn.
//
// The operations of a tenant stay in their order. A tenant whose operations cost much has its turn less
// often: the caller charges each operation, and a tenant that has used its quantum of a round waits
// until every other tenant has had the same. This is deficit round robin, with the cost paid
// afterwards, because only the operation itself shows how many bytes it writes. A tenant that had
// nothing queued goes before the others for one quantum, as in the scheduler FQ-CoDel, so that a
// quiet tenant does not wait for each of many busy ones.
//
// If the queue is full, it drops operations of the tenant that has most of it. A tenant that has few
// is therefore always accepted. Start at [Queue].
package fairqueue

// Limits of a queue.
type Limits struct {
	// Items and Bytes are the maximum number of items and of their bytes. An item that is larger than
	// Bytes is accepted if the queue is empty.
	Items, Bytes int
	// Quantum is the cost that a tenant may cause in a round. The last item of a round may exceed it;
	// the tenant then has less in the next rounds. It is at least 1.
	Quantum int
}

// Queue is a queue of items of many tenants. It is not safe for concurrent use. Its memory is bounded
// by the items in it.
type Queue[T any] struct {
	limits Limits
	flows  map[string]*flow[T]
	// fresh are the tenants that have just become active, and old are the others. Each is in the order
	// of turns. A tenant without items leaves when its turn comes.
	fresh, old ring[T]
	items      int
	bytes      int
	round      int // number of the current round
}

// flow is the queue of a tenant.
type flow[T any] struct {
	tenant  string
	items   []entry[T] // oldest first
	bytes   int
	deficit int      // what is left of the quantum; if 0 or less, the turn is over
	round   int      // the round of the tenant's next turn
	next    *flow[T] // in its ring
}

type entry[T any] struct {
	item T
	size int
}

// New returns an empty queue.
func New[T any](l Limits) *Queue[T] {
	l.Quantum = max(l.Quantum, 1)
	return &Queue[T]{limits: l, flows: map[string]*flow[T]{}}
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.items }

// Bytes returns the sum of the sizes of the items.
func (q *Queue[T]) Bytes() int { return q.bytes }

// Push adds an item of size bytes at the end of the tenant's items. If the queue is full, Push first
// removes the newest items of tenants that have more than this tenant would have, and returns them.
// ok is false if the item was not added, because this tenant has most of a full queue. Push then
// removes nothing.
func (q *Queue[T]) Push(tenant string, size int, item T) (dropped []T, ok bool) {
	f := q.flows[tenant]
	victims, ok := q.victims(f, size)
	if !ok {
		return nil, false
	}
	for _, v := range victims {
		dropped = append(dropped, q.dropNewest(v))
	}
	q.add(tenant, f, entry[T]{item, size})
	return dropped, true
}

// amount is a number of items and the sum of their sizes.
type amount struct{ items, bytes int }

func (a amount) plus(b amount) amount  { return amount{a.items + b.items, a.bytes + b.bytes} }
func (a amount) minus(b amount) amount { return amount{a.items - b.items, a.bytes - b.bytes} }

// victims returns whose newest items must leave before an item of size bytes is added to the flow f, or
// to a new one if f is nil. A tenant is in it once for each of its items. ok is false if other tenants do
// not have enough.
func (q *Queue[T]) victims(f *flow[T], size int) (victims []*flow[T], ok bool) {
	left := amount{q.items, q.bytes}
	own := amount{1, size}
	if f != nil {
		own = own.plus(amount{len(f.items), f.bytes})
	}
	var leaving map[*flow[T]]amount
	for left.items > 0 {
		var victim *flow[T]
		switch {
		case left.items >= q.limits.Items:
			victim = q.largest(func(f *flow[T]) int { return len(f.items) - leaving[f].items }, own.items)
		case left.bytes+size > q.limits.Bytes:
			victim = q.largest(func(f *flow[T]) int { return f.bytes - leaving[f].bytes }, own.bytes)
		default:
			return victims, true
		}
		if victim == nil {
			return nil, false
		}
		if leaving == nil {
			leaving = map[*flow[T]]amount{}
		}
		newest := amount{1, victim.items[len(victim.items)-1-leaving[victim].items].size}
		leaving[victim] = leaving[victim].plus(newest)
		left = left.minus(newest)
		victims = append(victims, victim)
	}
	return victims, true
}

// largest returns the tenant with the largest amount, or nil if none has more than least.
func (q *Queue[T]) largest(amount func(*flow[T]) int, least int) (found *flow[T]) {
	for _, f := range q.flows {
		if n := amount(f); n > least {
			found, least = f, n
		}
	}
	return found
}

func (q *Queue[T]) dropNewest(f *flow[T]) T {
	last := len(f.items) - 1
	e := f.items[last]
	f.items[last] = entry[T]{}
	f.items = f.items[:last]
	q.count(f, -1, -e.size)
	return e.item
}

func (q *Queue[T]) add(tenant string, f *flow[T], e entry[T]) {
	if f == nil {
		f = &flow[T]{tenant: tenant, deficit: q.limits.Quantum, round: q.round}
		q.flows[tenant] = f
		q.fresh.push(f)
	}
	f.items = append(f.items, e)
	q.count(f, 1, e.size)
}

func (q *Queue[T]) count(f *flow[T], items, bytes int) {
	f.bytes, q.items, q.bytes = f.bytes+bytes, q.items+items, q.bytes+bytes
}

// Pop removes the next item in turn. ok is false if the queue is empty. ok is also false if all tenants
// have used their quantum of this round and nextRound is false; if it is true, the next round begins.
func (q *Queue[T]) Pop(nextRound bool) (item T, ok bool) {
	for {
		from := &q.fresh
		if from.first == nil {
			from = &q.old
		}
		f := from.first
		switch {
		case f == nil:
			return item, false
		case len(f.items) == 0 && from == &q.fresh:
			q.old.push(from.pop()) // It leaves later: if it were fresh again at once, others would starve.
		case len(f.items) == 0:
			from.pop()
			delete(q.flows, f.tenant)
		case f.round > q.round && !nextRound:
			return item, false
		case f.round > q.round:
			q.round = f.round
		case f.deficit > 0:
			return q.take(f), true
		default:
			f.deficit, f.round = f.deficit+q.limits.Quantum, q.round+1
			q.old.push(from.pop())
		}
	}
}

func (q *Queue[T]) take(f *flow[T]) T {
	e := f.items[0]
	f.items[0] = entry[T]{}
	f.items = f.items[1:]
	q.count(f, -1, -e.size)
	return e.item
}

// Charge subtracts the cost of an item that Pop returned from the tenant's quantum.
func (q *Queue[T]) Charge(tenant string, cost int) {
	if f := q.flows[tenant]; f != nil {
		f.deficit -= cost
	}
}

// Clear removes all items and returns them. The items of a tenant are in their order.
func (q *Queue[T]) Clear() []T {
	var all []T
	for _, f := range q.flows {
		for _, e := range f.items {
			all = append(all, e.item)
		}
	}
	*q = *New[T](q.limits)
	return all
}

// ring is a list of tenants in the order of turns.
type ring[T any] struct{ first, last *flow[T] }

func (r *ring[T]) push(f *flow[T]) {
	if r.first == nil {
		r.first = f
	} else {
		r.last.next = f
	}
	r.last = f
}

func (r *ring[T]) pop() *flow[T] {
	f := r.first
	r.first, f.next = f.next, nil
	if r.first == nil {
		r.last = nil
	}
	return f
}
