package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// counters are counts since the store was opened.
type counters struct{ expired, evicted, corrupt atomic.Int64 }

// teller passes the changes of commits to the observer, those of each bucket in the order of their numbers.
type teller struct {
	observe func([]store.Change)

	mu      sync.Mutex
	buckets []told
	closed  bool
}

// told is the state of the changes of a bucket.
type told struct {
	next    int64 // number of the change that is told next
	waiting map[int64]*news
	timer   *time.Timer // runs while changes wait for one that did not come
}

// news is the changes of a commit.
type news struct {
	changes []store.Change
	done    chan struct{} // closed when they were told
}

// gapTime is how long changes wait for one with a lower number. It did not come if the reply of its commit was lost, or
// if another process made it.
const gapTime = 100 * time.Millisecond

func newTeller(observe func([]store.Change), buckets int) *teller {
	return &teller{observe: observe, buckets: make([]told, buckets)}
}

// start sets the number of the last change of a bucket before any is told.
func (t *teller) start(bucket int, last int64) {
	t.buckets[bucket] = told{next: last + 1, waiting: make(map[int64]*news)}
}

// tell passes changes on when all with lower numbers have been, and returns then.
func (t *teller) tell(bucket int, number int64, changes []store.Change) {
	n := &news{changes: changes, done: make(chan struct{})}
	t.mu.Lock()
	b := &t.buckets[bucket]
	b.waiting[number] = n
	t.flush(bucket)
	t.mu.Unlock()
	<-n.done
}

// flush passes on what has its turn. The caller holds mu.
func (t *teller) flush(bucket int) {
	b := &t.buckets[bucket]
	for {
		n, ok := b.waiting[b.next]
		if !ok {
			break
		}
		delete(b.waiting, b.next)
		b.next++
		t.pass(n)
	}
	for number, n := range b.waiting { // Those that come after a gap was given up.
		if number < b.next {
			delete(b.waiting, number)
			t.pass(n)
		}
	}
	switch {
	case len(b.waiting) == 0 && b.timer != nil:
		b.timer.Stop()
		b.timer = nil
	case len(b.waiting) > 0 && b.timer == nil && !t.closed:
		next := b.next
		b.timer = time.AfterFunc(gapTime, func() { t.giveUp(bucket, next) })
	}
}

func (t *teller) pass(n *news) {
	if len(n.changes) > 0 {
		t.observe(n.changes)
	}
	close(n.done)
}

// giveUp goes on behind a number that did not come.
func (t *teller) giveUp(bucket int, number int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	b.timer = nil
	if b.next == number && len(b.waiting) > 0 {
		least := int64(-1)
		for n := range b.waiting {
			if least < 0 || n < least {
				least = n
			}
		}
		b.next = least
	}
	t.flush(bucket)
}

// close ends all timers. Nothing is told afterwards.
func (t *teller) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for i := range t.buckets {
		if timer := t.buckets[i].timer; timer != nil {
			timer.Stop()
		}
	}
}

// readNumbers reads the number of the last change of each bucket.
func (s *Store) readNumbers(ctx context.Context) error {
	commands := make([]rueidis.Completed, len(s.buckets))
	for i, b := range s.buckets {
		commands[i] = s.client.B().Hget().Key(b.prefix + "st").Field("c").Build()
	}
	for i, reply := range s.client.DoMulti(ctx, commands...) {
		n, err := reply.AsInt64()
		if err != nil && !isNil(err) {
			return s.fault(err)
		}
		s.teller.start(i, n)
	}
	return nil
}
