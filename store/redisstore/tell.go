package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// teller passes the changes of commits to the observer, those of each bucket in the order of their numbers. It learns
// of them from the replies of the commits of this process and from the channels of the buckets, whichever comes first.
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
	awaited []awaited
	timer   *time.Timer // runs while changes or calls wait for a change that did not come
}

// awaited is a call that waits until all changes up to a number were told.
type awaited struct {
	through int64
	done    chan struct{} // closed then
}

// news is the changes of a commit.
type news struct {
	changes []store.Change
	done    chan struct{} // closed when they were told; nil if no call waits
}

// gapTime is how long changes wait for one with a lower number, which may come a moment later. If it does not come, the
// subscription was broken.
const gapTime = 100 * time.Millisecond

func newTeller(observe func([]store.Change), buckets int) *teller {
	t := &teller{observe: observe, buckets: make([]told, buckets)}
	for i := range t.buckets {
		t.buckets[i].waiting = make(map[int64]*news)
	}
	return t
}

// tell tells the changes of a commit of this process, and returns when they and all before them were told.
func (t *teller) tell(bucket int, number int64, changes []store.Change) {
	t.mu.Lock()
	b := &t.buckets[bucket]
	if number < b.next { // They came by the channel, or were given up.
		t.mu.Unlock()
		return
	}
	n := &news{changes: changes, done: make(chan struct{})}
	if heard := b.waiting[number]; heard != nil && heard.done != nil {
		heard.done, n.done = nil, heard.done
	}
	b.waiting[number] = n
	t.flush(bucket)
	t.mu.Unlock()
	<-n.done
}

// await returns when all changes of a bucket up to a number were told, or were given up, which is told as a GAP.
func (t *teller) await(bucket int, through int64) {
	t.mu.Lock()
	a := awaited{through: through, done: make(chan struct{})}
	b := &t.buckets[bucket]
	b.awaited = append(b.awaited, a)
	t.flush(bucket)
	t.mu.Unlock()
	<-a.done
}

// hear tells what came by the channel of a bucket, in its turn.
func (t *teller) hear(bucket int, text, own string) {
	p, ok := readPublished(text)
	if !ok {
		t.miss(bucket, -1)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	if b.waiting[p.number] != nil || p.number < b.next && p.server == own {
		return // The reply came first.
	}
	changes, ok := p.changes(own)
	if !ok {
		changes = gap()
	}
	if p.number < b.next { // It was given up, or a failover has lost commits, so that numbers are given again.
		t.pass(&news{changes: append(gap(), changes...)})
		return
	}
	b.waiting[p.number] = &news{changes: changes}
	t.flush(bucket)
}

// miss tells that changes up to a number may have been missed. If it is negative, only the observer is told.
func (t *teller) miss(bucket int, through int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	if through >= 0 && b.next > through {
		return
	}
	t.pass(&news{changes: gap()})
	b.next = max(b.next, through+1)
	t.flush(bucket)
}

// start sets the number of the last change of a bucket before any is told.
func (t *teller) start(bucket int, last int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buckets[bucket].next = last + 1
	t.flush(bucket)
}

// flush passes on what has its turn. The caller holds mu.
func (t *teller) flush(bucket int) {
	b := &t.buckets[bucket]
	if b.next == 0 {
		return // Nothing is told before start.
	}
	for number, n := range b.waiting { // Those that come after a gap was given up.
		if number < b.next {
			delete(b.waiting, number)
			t.pass(n)
		}
	}
	for {
		n, ok := b.waiting[b.next]
		if !ok {
			break
		}
		delete(b.waiting, b.next)
		b.next++
		t.pass(n)
	}
	b.awaited = slices.DeleteFunc(b.awaited, func(a awaited) bool {
		if a.through < b.next || t.closed {
			close(a.done)
			return true
		}
		return false
	})
	waits := len(b.waiting)+len(b.awaited) > 0
	switch {
	case !waits && b.timer != nil:
		b.timer.Stop()
		b.timer = nil
	case waits && b.timer == nil && !t.closed:
		next := b.next
		b.timer = time.AfterFunc(gapTime, func() { t.giveUp(bucket, next) })
	}
}

func (t *teller) pass(n *news) {
	if len(n.changes) > 0 && !t.closed {
		t.observe(n.changes)
	}
	if n.done != nil {
		close(n.done)
	}
}

// giveUp continues after a number that did not come.
func (t *teller) giveUp(bucket int, number int64) {
	t.mu.Lock()
	b := &t.buckets[bucket]
	b.timer = nil
	through := int64(-1)
	if b.next == number {
		least := func(n int64) {
			if through < 0 || n < through {
				through = n
			}
		}
		for n := range b.waiting {
			least(n - 1)
		}
		for _, a := range b.awaited {
			least(a.through)
		}
	}
	t.mu.Unlock()
	if through >= 0 {
		t.miss(bucket, through)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush(bucket)
}

// close ends all timers and tells nothing more.
func (t *teller) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for i := range t.buckets {
		b := &t.buckets[i]
		if b.timer != nil {
			b.timer.Stop()
		}
		for number, n := range b.waiting {
			delete(b.waiting, number)
			t.pass(n)
		}
		t.flush(i)
	}
}

// awaitTold waits until the changes of a commit whose reply, and so whose number, was lost were told. If the number of
// the bucket's last change cannot be read either, it does not wait: the changes come by the channel, or a GAP does.
func (s *Store) awaitTold(ctx context.Context, b bucket) {
	last, err := s.client.Do(ctx, s.client.B().Hget().Key(b.prefix+"st").Field("c").Build()).AsInt64()
	if err == nil {
		s.teller.await(b.index, last)
	}
}

// subscribe begins to hear of the changes of all buckets, and returns when it does.
func (s *Store) subscribe(ctx context.Context) error {
	ready := make(chan error, len(s.buckets))
	for i, b := range s.buckets {
		s.hearing.Go(func() { s.hearAll(i, b, ready) })
	}
	for range s.buckets {
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%w: no subscription: %w", store.ErrUnavailable, ctx.Err())
		}
	}
	return nil
}

// hearAll hears of the changes of a bucket until the store is closed. The driver subscribes again after a broken
// connection and says so only by the hook; what was published in between is lost.
func (s *Store) hearAll(index int, b bucket, ready chan<- error) {
	subscribed := make(chan struct{}, 1)
	hook := func(sub rueidis.PubSubSubscription) {
		if sub.Kind != "ssubscribe" {
			return
		}
		select {
		case subscribed <- struct{}{}:
		default: // The number is read for both.
		}
	}
	var once sync.Once
	answer := func(err error) { once.Do(func() { ready <- err }) }
	s.hearing.Go(func() { s.catchUpAll(index, b, subscribed, answer) })
	ctx := rueidis.WithOnSubscriptionHook(s.running, hook)
	for s.running.Err() == nil {
		subscribe := s.client.B().Ssubscribe().Channel(b.prefix + "ch").Build()
		err := s.client.Receive(ctx, subscribe, func(m rueidis.PubSubMessage) { s.teller.hear(index, m.Message, s.server) })
		if err = s.fault(err); err != nil && !errors.Is(err, store.ErrUnavailable) {
			answer(fmt.Errorf("subscribe to %q: %w", b.prefix+"ch", err)) // Open fails with it.
		}
		select {
		case <-s.running.Done():
		case <-time.After(s.renewTime() / 10): // The engine has refused the subscription, or is away.
		}
	}
}

// catchUpAll reads the number of the last change of a bucket after each subscription. It calls answer after the first.
func (s *Store) catchUpAll(index int, b bucket, subscribed <-chan struct{}, answer func(error)) {
	first := true
	for {
		select {
		case <-s.running.Done():
			return
		case <-subscribed:
		}
		n, err := s.client.Do(s.running, s.client.B().Hget().Key(b.prefix+"st").Field("c").Build()).AsInt64()
		if err != nil && isNil(err) {
			n, err = 0, nil
		}
		switch {
		case first:
			s.teller.start(index, n)
			answer(s.fault(err))
			first = false
		case err != nil: // The connection broke again; there will be another subscription.
		default:
			s.teller.miss(index, n)
		}
	}
}
