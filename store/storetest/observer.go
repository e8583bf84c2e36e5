package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// clock is a manual clock. It also advances by tick with every reading.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	tick time.Duration
}

func newClock() *clock {
	return &clock{now: time.Date(2026, time.March, 1, 9, 30, 0, 123_456_789, time.UTC)}
}

// Now implements store.Options.Now.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(c.tick)
	return c.now
}

// Advance moves the clock forward, or back if d is negative.
func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// observer collects changes.
type observer struct {
	t        tester
	running  atomic.Bool
	mu       sync.Mutex
	changes  []store.Change
	callback func([]store.Change) // called by observe; nil: nothing
}

func (o *observer) observe(changes []store.Change) {
	if !o.running.CompareAndSwap(false, true) {
		o.t.Error("observer was called while it was running")
	}
	defer o.running.Store(false)
	o.mu.Lock()
	o.changes = append(o.changes, changes...)
	callback := o.callback
	o.mu.Unlock()
	if callback != nil {
		callback(changes)
	}
}

// setCallback sets the function that observe calls from now on.
func (o *observer) setCallback(callback func([]store.Change)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.callback = callback
}

// drain returns the changes since the previous call.
func (o *observer) drain() []store.Change {
	o.mu.Lock()
	defer o.mu.Unlock()
	changes := o.changes
	o.changes = nil
	return changes
}

// ephemeralEnded is the end of the summary of a change with EphemeralEnded.
const ephemeralEnded = ", ephemeral"

// summaries returns the parts of changes that are determined by the writes alone.
func summaries(changes []store.Change) []string {
	out := make([]string, len(changes))
	for i, c := range changes {
		out[i] = fmt.Sprintf("%s %s version %d count %d trimmed %d", kind(c.Kind), c.ConversationID, c.Version, c.Count,
			c.Trimmed) + removalSummary(c.Removal) + recordSummary(c.Record)
		if c.EphemeralEnded {
			out[i] += ephemeralEnded
		}
	}
	return out
}

// removalSummary returns the end of the summary of a change with a Removal.
func removalSummary(m *store.Removal) string {
	switch {
	case m == nil:
		return ""
	case len(m.Sequences) > 0:
		return fmt.Sprint(", removed ", m.Sequences)
	}
	return fmt.Sprint(", removed after ", m.After)
}

// recordSummary returns the end of the summary of a change with a Record.
func recordSummary(r *parleyv1.RecordChange) string {
	switch {
	case r == nil:
		return ""
	case r.GetDeleted():
		return fmt.Sprintf(", record %s@%d deleted", r.GetKey(), r.GetRevision())
	}
	return fmt.Sprintf(", record %s@%d", r.GetKey(), r.GetRevision())
}

func kind(k parleyv1.ChangeKind) string { return k.String()[len("CHANGE_KIND_"):] }
