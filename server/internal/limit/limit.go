// Package limit limits what each tenant may use of the server.
//
// [Tenants] has the limits of all tenants and counts the requests, bytes and calls of those that are
// active. Other packages enforce the limits of what they own: the store those of conversations and bytes,
// package turn that of turns, package watch that of watchers. They get them from [Tenants.Of] at each
// call, so [Tenants.Set] has an effect on them at once. Start at [Tenants].
package limit

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits are the limits of one tenant. 0 means no limit.
type Limits struct {
	MaxConversations     int // of the store
	MaxBytes             int // of all conversations
	MaxRecordBytes       int // of the records of the tenant itself
	RequestsPerSecond    int // calls that start
	AppendBytesPerSecond int // of requests that are stored, and of copies of conversations
	MaxTurns             int // running
	MaxWatchers          int // streams of WatchConversations and waiting calls of GetRoutingSummary
	MaxStreams           int // streams of any kind
	MaxImports           int // running
}

// Config contains the limits of all tenants.
type Config struct {
	Default  Limits            // of tenants that are not in ByTenant
	ByTenant map[string]Limits // must not be changed afterwards
}

// of returns the limits of a tenant.
func (c *Config) of(tenant string) Limits {
	if l, ok := c.ByTenant[tenant]; ok {
		return l
	}
	return c.Default
}

const (
	// MinAppendBurst is the minimum number of bytes that a tenant may append at once: the size of the
	// largest request. A smaller burst would refuse such requests forever.
	MinAppendBurst = 4 << 20
	// maxActive limits the tenants that are active at the same time. Each takes about 500 bytes.
	maxActive = 100_000
	// cleanInterval is the minimum time between two removals of the tenants that are not active.
	cleanInterval = 10 * time.Second
)

// Kind is a kind of limit.
type Kind int

// The kinds of limits that Tenants enforces.
const (
	Requests Kind = iota + 1
	AppendBytes
	Streams
	Imports
	ActiveTenants // of the server
)

// Error means that a call would exceed a limit.
type Error struct {
	Kind  Kind
	Limit int
	// Retry is the time after which the call would be within its rate. It is 0 if that is unknown.
	Retry time.Duration
}

// Error returns the limit.
func (e *Error) Error() string {
	names := [...]string{
		Requests: "requests a second", AppendBytes: "appended bytes a second", Streams: "streams", Imports: "imports",
		ActiveTenants: "active tenants of the server",
	}
	return fmt.Sprintf("limit of %d %s reached", e.Limit, names[e.Kind])
}

// Tenants has the limits of all tenants. Its methods may be called from many goroutines. A nil Tenants
// has no limits.
type Tenants struct {
	config atomic.Pointer[Config]
	now    func() time.Time

	mu        sync.Mutex
	active    map[string]*usage // only tenants that have open calls, or made calls in the last seconds
	nextClean time.Time
}

// usage is what a tenant uses. Tenants.mu guards it.
type usage struct {
	requests, bytes  bucket
	streams, imports int
}

// New returns the limits of all tenants. now is the clock.
func New(c Config, now func() time.Time) *Tenants {
	t := &Tenants{now: now, active: map[string]*usage{}}
	t.config.Store(&c)
	return t
}

// Set replaces the limits of all tenants at once, including those that are active. Nothing that runs is
// ended: a tenant above a lower limit may start no more until it is below it.
func (t *Tenants) Set(c Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.config.Store(&c)
	now := t.now()
	for tenant, u := range t.active {
		u.set(c.of(tenant), now)
	}
}

// Of returns the limits of a tenant.
func (t *Tenants) Of(tenant string) Limits {
	if t == nil {
		return Limits{}
	}
	return t.config.Load().of(tenant)
}

// Request counts a call that starts. It returns an *Error if the tenant's rate is exceeded.
func (t *Tenants) Request(tenant string) error {
	if t.Of(tenant).RequestsPerSecond == 0 {
		return nil
	}
	return t.use(tenant, func(u *usage, l Limits, now time.Time) error {
		return u.requests.take(1, l.RequestsPerSecond, Requests, now)
	})
}

// Append counts n bytes to be stored. It returns an *Error if the tenant's rate is exceeded.
func (t *Tenants) Append(tenant string, n int) error {
	if t.Of(tenant).AppendBytesPerSecond == 0 {
		return nil
	}
	return t.use(tenant, func(u *usage, l Limits, now time.Time) error {
		return u.bytes.take(n, l.AppendBytesPerSecond, AppendBytes, now)
	})
}

// AppendLater counts n bytes to be stored, even if the tenant's rate is exceeded. It returns how long the
// caller must wait before it stores them.
func (t *Tenants) AppendLater(tenant string, n int) (wait time.Duration, err error) {
	if t.Of(tenant).AppendBytesPerSecond == 0 {
		return 0, nil
	}
	err = t.use(tenant, func(u *usage, l Limits, now time.Time) error {
		if l.AppendBytesPerSecond > 0 {
			wait = u.bytes.limiter.ReserveN(now, min(n, u.bytes.limiter.Burst())).DelayFrom(now)
		}
		return nil
	})
	return wait, err
}

// Stream counts a stream until release is called. It returns an *Error if the tenant has too many.
func (t *Tenants) Stream(tenant string) (release func(), err error) {
	return t.count(tenant, Streams, func(u *usage, l Limits) (*int, int) { return &u.streams, l.MaxStreams })
}

// Import counts an import until release is called. It returns an *Error if the tenant has too many.
func (t *Tenants) Import(tenant string) (release func(), err error) {
	return t.count(tenant, Imports, func(u *usage, l Limits) (*int, int) { return &u.imports, l.MaxImports })
}

// count adds one to a counter, which counter returns with its limit. It counts without a limit, too,
// because the limit may be set before the release.
func (t *Tenants) count(
	tenant string, kind Kind, counter func(*usage, Limits) (*int, int),
) (release func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	var n *int
	err = t.use(tenant, func(u *usage, l Limits, _ time.Time) error {
		var limit int
		if n, limit = counter(u, l); limit > 0 && *n >= limit {
			return &Error{Kind: kind, Limit: limit}
		}
		*n++
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		*n-- // The tenant has stayed active, because its counter was not 0.
	}), nil
}

// use calls f with the usage of a tenant, which it adds if the tenant was not active.
func (t *Tenants) use(tenant string, f func(*usage, Limits, time.Time) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, l := t.now(), t.Of(tenant)
	u := t.active[tenant]
	if u == nil || !now.Before(t.nextClean) {
		t.clean(now)
		u = t.active[tenant]
	}
	if u == nil {
		if len(t.active) >= maxActive {
			return &Error{Kind: ActiveTenants, Limit: maxActive}
		}
		u = &usage{}
		u.set(l, now)
		t.active[tenant] = u
	}
	return f(u, l, now)
}

// clean removes the tenants that are not active, once every cleanInterval. A new tenant has the same
// state as such a tenant.
func (t *Tenants) clean(now time.Time) {
	if now.Before(t.nextClean) {
		return
	}
	t.nextClean = now.Add(cleanInterval)
	for tenant, u := range t.active {
		if u.streams == 0 && u.imports == 0 && u.requests.isFull(now) && u.bytes.isFull(now) {
			delete(t.active, tenant)
		}
	}
}

// set changes the rates.
func (u *usage) set(l Limits, now time.Time) {
	u.requests.set(l.RequestsPerSecond, l.RequestsPerSecond, now)
	u.bytes.set(l.AppendBytesPerSecond, max(l.AppendBytesPerSecond, MinAppendBurst), now)
}

// bucket is a token bucket. Without a rate it has no state.
type bucket struct{ limiter *rate.Limiter }

func (b *bucket) set(perSecond, burst int, now time.Time) {
	switch {
	case perSecond == 0:
		b.limiter = nil
	case b.limiter == nil:
		b.limiter = rate.NewLimiter(rate.Limit(perSecond), burst)
	default:
		b.limiter.SetLimitAt(now, rate.Limit(perSecond))
		b.limiter.SetBurstAt(now, burst)
	}
}

// take takes n tokens, or the complete burst if n is larger. If there are too few, it takes none and
// returns an *Error with the time at which there are enough.
func (b *bucket) take(n, limit int, kind Kind, now time.Time) error {
	if b.limiter == nil {
		return nil
	}
	n = min(n, b.limiter.Burst())
	if b.limiter.AllowN(now, n) {
		return nil
	}
	missing := float64(n) - b.limiter.TokensAt(now)
	seconds := missing / float64(b.limiter.Limit())
	return &Error{Kind: kind, Limit: limit, Retry: time.Duration(math.Ceil(seconds * float64(time.Second)))}
}

// isFull reports whether the bucket has all its tokens.
func (b *bucket) isFull(now time.Time) bool {
	return b.limiter == nil || b.limiter.TokensAt(now) >= float64(b.limiter.Burst())
}
