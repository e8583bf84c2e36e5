package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// clock moves when it is told to, and by tick with every reading.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	tick time.Duration
}

func newClock() *clock {
	return &clock{now: time.Date(2026, time.March, 1, 9, 30, 0, 123_456_789, time.UTC)}
}

// Now is for store.Options.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(c.tick)
	return c.now
}

// Advance moves the clock, back when d is negative.
func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// observer collects changes.
type observer struct {
	t       tester
	inside  atomic.Bool
	mu      sync.Mutex
	changes []store.Change
	then    func([]store.Change) // runs inside observe; nil: nothing
}

func (o *observer) observe(changes []store.Change) {
	if !o.inside.CompareAndSwap(false, true) {
		o.t.Error("observer is called while it runs")
	}
	defer o.inside.Store(false)
	o.mu.Lock()
	o.changes = append(o.changes, changes...)
	then := o.then
	o.mu.Unlock()
	if then != nil {
		then(changes)
	}
}

// and sets what is to happen inside the observer from now on.
func (o *observer) and(then func([]store.Change)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.then = then
}

// take returns the changes since it was last called.
func (o *observer) take() []store.Change {
	o.mu.Lock()
	defer o.mu.Unlock()
	changes := o.changes
	o.changes = nil
	return changes
}

// sessionEnded ends what brief says of a change that tells of the end of session memory.
const sessionEnded = ", session ended"

// brief says of changes what is decided by the writes alone.
func brief(changes []store.Change) []string {
	out := make([]string, len(changes))
	for i, c := range changes {
		out[i] = fmt.Sprintf("%s %s version %d count %d trimmed %d", kind(c.Kind), c.ConversationID, c.Version, c.Count, c.Trimmed)
		if c.SessionEnded {
			out[i] += sessionEnded
		}
	}
	return out
}

func kind(k parleyv1.ChangeKind) string { return k.String()[len("CHANGE_KIND_"):] }
