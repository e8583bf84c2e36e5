package calllog

import (
	"context"
	"sync"
	"time"
)

const (
	// maxEntries is how many audit entries of a kind that any client can cause are written in a second.
	maxEntries = 10
	// boundTime is the time that maxEntries applies to.
	boundTime = time.Second
)

// bound limits the number of entries in boundTime. It counts those that are left out, and reports the count at the
// end of that time. It has a timer only while there is something to report.
type bound struct {
	report func(ctx context.Context, count int)

	mu      sync.Mutex
	start   time.Time // of the current time
	written int       // entries since start
	leftOut int       // entries since the last report
	timer   *time.Timer
	flush   func() // what the timer calls
	closed  bool
}

// allow reports whether an entry may be written now. If not, the report of the count receives ctx without its end.
func (b *bound) allow(ctx context.Context, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if since := now.Sub(b.start); since < 0 || since >= boundTime {
		b.start, b.written = now, 0
	}
	if b.written < maxEntries {
		b.written++
		return true
	}
	b.leftOut++
	if b.timer == nil && !b.closed {
		ctx = context.WithoutCancel(ctx)
		b.flush = func() { b.reportLeftOut(ctx) }
		b.timer = time.AfterFunc(b.start.Add(boundTime).Sub(now), b.flush)
	}
	return false
}

// reportLeftOut reports the count and sets it to 0.
func (b *bound) reportLeftOut(ctx context.Context) {
	b.mu.Lock()
	count := b.leftOut
	b.leftOut, b.timer = 0, nil
	b.mu.Unlock()
	if count > 0 {
		b.report(ctx, count)
	}
}

// close reports what is left out so far. Later entries that are left out are not reported.
func (b *bound) close() {
	b.mu.Lock()
	b.closed = true
	pending := b.timer != nil && b.timer.Stop()
	flush := b.flush
	b.mu.Unlock()
	if pending {
		flush()
	}
}
