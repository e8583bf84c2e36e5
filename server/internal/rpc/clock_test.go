package rpc

import (
	"sync"
	"time"
)

// manualClock is a clock that moves only when advance is called.
type manualClock struct {
	mu  sync.Mutex
	now time.Time
}

func newManualClock() *manualClock {
	return &manualClock{now: time.Date(2026, 2, 3, 4, 5, 6, 700, time.UTC)}
}

// Now returns the time of the clock.
func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// onClock makes the server and the store use a clock.
func onClock(clock *manualClock) func(*setup) {
	return func(s *setup) { s.Now, s.storeOptions.Now = clock.Now, clock.Now }
}
