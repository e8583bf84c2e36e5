package redisstore

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhq/parley/store"
)

// teller passes the changes of commits to the observer, those of each bucket in the order of their numbers. It learns
// of them from the replies of the commits of this process and from the channels of the buckets, whichever comes first.
//
// All numbers are of one epoch. When the teller receives another epoch, or a number for the second time, it does not
// know the order until the epoch was read again. It then passes on a GAP, all changes in the order of their arrival and
// without a place, and another GAP when it knows the order.
type teller struct {
	observe func([]store.Change)

	mu      sync.Mutex
	buckets []told
	closed  bool
}

// told is the state of the changes of a bucket.
type told struct {
	epoch string // of the numbers; empty while it is not known
	next  int64  // number of the change that is told next; 0 before the first reading
	// start is the place after which the observer has received all changes; nil means the zero place. Writers hold mu, and
	// readers need not.
	start   atomic.Pointer[store.Place]
	waiting map[int64]*news
	awaited []awaited
	timer   *time.Timer // runs while changes or calls wait for a change that did not come

	// early contains the commits of this process that came by the channel before the reply.
	early map[int64]struct{}
	// lost is the last known epoch while none is known, with the number of the last change in it, or with the highest
	// possible number if a number came twice.
	lost numbered
	// heard is the last change that came by the channel while the epoch was not known.
	heard numbered
	// readAgain receives a value when the last number is to be read.
	readAgain chan struct{}
}

// awaited is a call that waits until all changes up to a number were told.
type awaited struct {
	through int64
	done    chan struct{} // closed then
}

// news is the changes of a commit.
type news struct {
	changes []store.Change
	missed  bool          // the changes were published without all their content
	done    chan struct{} // closed when they were told; nil if no call waits
}

// gapTime is how long changes wait for one with a lower number, which may come a moment later. If it does not come, the
// subscription was broken.
const gapTime = 100 * time.Millisecond

// maxEarly limits told.early. The reply of a commit in it may never come.
const maxEarly = 10_000

func newTeller(observe func([]store.Change), buckets int) *teller {
	t := &teller{observe: observe, buckets: make([]told, buckets)}
	for i := range t.buckets {
		b := &t.buckets[i]
		b.waiting, b.early, b.readAgain = make(map[int64]*news), make(map[int64]struct{}), make(chan struct{}, 1)
	}
	return t
}

// since returns the place after which the observer has received all changes of a bucket. It does not lock.
func (t *teller) since(bucket int) store.Place {
	if start := t.buckets[bucket].start.Load(); start != nil {
		return *start
	}
	return store.Place{}
}

// tell tells the changes of a commit of this process, and returns when they and all before them were told.
func (t *teller) tell(bucket int, at numbered, changes []store.Change) {
	t.mu.Lock()
	b := &t.buckets[bucket]
	n := &news{changes: changes, done: make(chan struct{})}
	_, early := b.early[at.number]
	delete(b.early, at.number)
	switch {
	case b.epoch == "" || at.epoch != b.epoch:
		t.lose(b, false)
		t.pass(b, 0, n)
	case at.number >= b.next:
		if heard := b.waiting[at.number]; heard != nil && heard.done != nil {
			heard.done, n.done = nil, heard.done
		}
		b.waiting[at.number] = n
		t.flush(bucket)
	case early:
		close(n.done)
	default:
		t.late(b, at.number, n)
	}
	t.mu.Unlock()
	<-n.done
}

// late passes on a change whose number was passed already. Either the change was given up or missed, so that a GAP came
// first, or the engine has assigned the number again. The caller holds mu.
func (t *teller) late(b *told, number int64, n *news) {
	if uint64(number) > b.start.Load().Number {
		t.lose(b, true)
	} else {
		b.request() // The engine may also have assigned this number again.
	}
	t.pass(b, 0, n)
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
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	if !ok {
		t.lose(b, false) // It is of a process of another version, and its number will be missing.
		return
	}
	n := new(news)
	n.changes, ok = p.changes(own)
	n.missed = !ok
	if b.next > 0 && b.epoch != "" && p.epoch != b.epoch {
		t.lose(b, false)
	}
	switch mine := p.server == own; {
	case b.epoch == "":
		if b.heard = p.numbered; !mine && b.next > 0 { // The changes of this process are passed on with the reply.
			t.pass(b, 0, n)
		}
	case mine && (p.number < b.next || b.waiting[p.number] != nil): // The reply came first.
	case p.number < b.next:
		t.late(b, p.number, n)
	default:
		if b.waiting[p.number] = n; mine {
			if len(b.early) >= maxEarly {
				clear(b.early)
			}
			b.early[p.number] = struct{}{}
		}
		t.flush(bucket)
	}
}

// lose begins the time in which the epoch is not known. repeated is true if a number of the epoch came twice. The
// caller holds mu.
func (t *teller) lose(b *told, repeated bool) {
	b.request()
	if b.epoch == "" {
		return
	}
	if b.lost = (numbered{b.next - 1, b.epoch}); repeated {
		b.lost.number = math.MaxInt64
	}
	b.epoch = ""
	t.reset(b)
}

// reset passes on a GAP and then the waiting changes, whose order in the old epoch is lost. The caller holds mu.
func (t *teller) reset(b *told) {
	b.heard = numbered{}
	clear(b.early)
	t.gap(b)
	for _, number := range slices.Sorted(maps.Keys(b.waiting)) {
		t.pass(b, 0, b.waiting[number])
	}
	clear(b.waiting)
	for _, a := range b.awaited {
		close(a.done)
	}
	b.awaited = nil
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

// request requests that the last number is read.
func (b *told) request() {
	select {
	case b.readAgain <- struct{}{}:
	default: // A request is pending.
	}
}

// seen returns the last change that was told, for the next reading of the last number.
func (t *teller) seen(bucket int) numbered {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	if b.epoch == "" {
		return b.lost
	}
	return numbered{b.next - 1, b.epoch}
}

// setLast passes on a GAP if changes up to the last change of a bucket, as it was read, were missed, or are of another
// epoch. The first call sets the last change before any change is passed on.
func (t *teller) setLast(bucket int, last numbered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	if b.epoch == last.epoch {
		if b.next <= last.number { // They may still come by the channel.
			b.awaited = append(b.awaited, awaited{through: last.number, done: make(chan struct{})})
			t.flush(bucket)
		}
		return
	}
	if b.heard.epoch == last.epoch { // It was published after the reading.
		last.number = max(last.number, b.heard.number)
	}
	first := b.next == 0
	b.epoch, b.lost, b.next = last.epoch, numbered{}, last.number+1
	if first {
		b.setStart()
	} else {
		t.reset(b)
	}
}

// miss passes on a GAP for missed changes up to a number. The caller holds mu.
func (t *teller) miss(bucket int, through int64) {
	b := &t.buckets[bucket]
	if b.next > through {
		return
	}
	b.next = through + 1
	t.gap(b)
	t.flush(bucket)
}

// setStart sets start: the observer will receive all changes after the last one that it has received. The caller holds
// mu.
func (b *told) setStart() {
	var start store.Place
	if b.epoch != "" {
		start = store.Place{Epoch: b.epoch, Number: uint64(b.next - 1), Index: store.LastIndex}
	}
	b.start.Store(&start)
}

// gap passes on a GAP: changes before the next one may have been missed. The caller holds mu.
func (t *teller) gap(b *told) {
	b.setStart()
	if !t.closed {
		t.observe(gap())
	}
}

// flush passes on what has its turn. The caller holds mu.
func (t *teller) flush(bucket int) {
	b := &t.buckets[bucket]
	for _, number := range slices.Sorted(maps.Keys(b.waiting)) {
		if number > b.next {
			break
		}
		n := b.waiting[number]
		delete(b.waiting, number)
		b.next = max(b.next, number+1)
		t.pass(b, number, n) // Changes below next arrived after the wait for them was given up.
	}
	b.awaited = slices.DeleteFunc(b.awaited, func(a awaited) bool {
		if a.through < b.next || t.closed || b.epoch == "" {
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

// pass passes the changes of a commit to the observer. Changes that arrive after their number was passed have no place
// of their own: they were missed, and may precede or follow changes that the observer has received. The caller holds
// mu.
func (t *teller) pass(b *told, number int64, n *news) {
	if n.missed {
		n.changes = nil
		t.gap(b)
	}
	place := store.Place{Epoch: b.epoch, Number: uint64(number)}
	start := store.Place{}
	if known := b.start.Load(); known != nil {
		start = *known
	}
	for i := range n.changes {
		if n.changes[i].Place = start; place.Number > start.Number && b.epoch != "" {
			if place.Index = uint32(i); i == len(n.changes)-1 {
				place.Index = store.LastIndex
			}
			n.changes[i].Place = place
		}
	}
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
	defer t.mu.Unlock()
	b := &t.buckets[bucket]
	b.timer = nil
	if b.next != number || len(b.waiting)+len(b.awaited) == 0 {
		t.flush(bucket)
		return
	}
	through := int64(math.MaxInt64)
	for n := range b.waiting {
		through = min(through, n-1)
	}
	for _, a := range b.awaited {
		through = min(through, a.through)
	}
	t.miss(bucket, through)
}

// close ends all timers and tells nothing more.
func (t *teller) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for i := range t.buckets {
		t.reset(&t.buckets[i])
	}
}
