package fairqueue

import "time"

// sharedPeriod is how long a queue counts as shared after items of one tenant have followed those of another.
const sharedPeriod = 10 * time.Second

// Upkeep is the tenant of items that belong to no tenant, such as those of a sweeper.
const Upkeep = ""

// Sharing reports whether several tenants use a queue. The zero value is usable. It is not safe for
// concurrent use.
type Sharing struct {
	last  string    // tenant of the newest item, except Upkeep
	until time.Time // zero if only one tenant uses the queue
}

// Add records that a tenant has added an item.
func (s *Sharing) Add(tenant string) {
	if tenant == s.last || tenant == Upkeep {
		return
	}
	if s.last != "" {
		s.until = time.Now().Add(sharedPeriod)
	}
	s.last = tenant
}

// Shared reports whether several tenants have added items in the last seconds.
func (s *Sharing) Shared() bool {
	if s.until.IsZero() {
		return false // Most servers have one tenant, and need no clock.
	}
	if time.Now().After(s.until) {
		s.until = time.Time{}
	}
	return !s.until.IsZero()
}
