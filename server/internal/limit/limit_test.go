package limit

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock is a clock that a test advances.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func (c *clock) time() time.Time { return c.now }

func open(l Limits) (*Tenants, *clock) {
	c := newClock()
	return New(Config{Default: l}, c.time), c
}

// wantError checks that err is an *Error with these fields.
func wantError(t *testing.T, what string, err error, want Error) {
	t.Helper()
	var got *Error
	if !errors.As(err, &got) {
		t.Errorf("%s = %v, want an Error", what, err)
		return
	}
	if d := cmp.Diff(want, *got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestRequests(t *testing.T) {
	tenants, clock := open(Limits{RequestsPerSecond: 4})
	for i := range 4 {
		if err := tenants.Request("acme"); err != nil {
			t.Errorf("request %d of the burst = %v", i, err)
		}
	}
	for range 2 { // A refusal takes nothing.
		wantError(t, "request above the rate", tenants.Request("acme"),
			Error{Kind: Requests, Limit: 4, Retry: 250 * time.Millisecond})
	}
	if err := tenants.Request("other"); err != nil {
		t.Errorf("request of another tenant = %v", err)
	}
	clock.now = clock.now.Add(100 * time.Millisecond)
	wantError(t, "request above the rate", tenants.Request("acme"),
		Error{Kind: Requests, Limit: 4, Retry: 150 * time.Millisecond})
	clock.now = clock.now.Add(150 * time.Millisecond)
	if err := tenants.Request("acme"); err != nil {
		t.Errorf("request after the time of RetryInfo = %v", err)
	}
}

func TestAppend(t *testing.T) {
	const rate = 1 << 20
	tenants, clock := open(Limits{AppendBytesPerSecond: rate})
	for range 2 {
		if err := tenants.Append("acme", MinAppendBurst/2); err != nil {
			t.Errorf("append within the burst = %v", err)
		}
	}
	wantError(t, "append above the rate", tenants.Append("acme", rate/2),
		Error{Kind: AppendBytes, Limit: rate, Retry: 500 * time.Millisecond})
	clock.now = clock.now.Add(500 * time.Millisecond)
	if err := tenants.Append("acme", rate/2); err != nil {
		t.Errorf("append after the time of RetryInfo = %v", err)
	}
	// A request that is larger than the burst takes the burst. It is not refused forever.
	wantError(t, "append of more than the burst", tenants.Append("acme", 9*MinAppendBurst),
		Error{Kind: AppendBytes, Limit: rate, Retry: 4 * time.Second})
	clock.now = clock.now.Add(4 * time.Second)
	if err := tenants.Append("acme", 9*MinAppendBurst); err != nil {
		t.Errorf("append of more than the burst = %v", err)
	}
	for _, want := range []time.Duration{500 * time.Millisecond, time.Second} {
		if wait, err := tenants.AppendLater("acme", rate/2); wait != want || err != nil {
			t.Errorf("AppendLater = %v, %v, want %v", wait, err, want)
		}
	}
}

func TestCounts(t *testing.T) {
	tenants, _ := open(Limits{MaxStreams: 2, MaxImports: 1})
	for name, start := range map[string]func(string) (func(), error){"streams": tenants.Stream, "imports": tenants.Import} {
		kind, limit := Streams, 2
		if name == "imports" {
			kind, limit = Imports, 1
		}
		var releases []func()
		for range limit {
			release, err := start("acme")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			releases = append(releases, release)
		}
		_, err := start("acme")
		wantError(t, name, err, Error{Kind: kind, Limit: limit})
		other, err := start("other")
		if err != nil {
			t.Fatalf("%s of another tenant: %v", name, err)
		}
		other()
		releases[0]()
		releases[0]() // Only the first call counts.
		release, err := start("acme")
		if err != nil {
			t.Errorf("%s after a release = %v", name, err)
		}
		_, err = start("acme")
		wantError(t, name+" after a release", err, Error{Kind: kind, Limit: limit})
		release()
	}
}

// TestSet checks that new limits apply to active tenants.
func TestSet(t *testing.T) {
	tenants, clock := open(Limits{MaxTurns: 1})
	release, err := tenants.Stream("acme") // It is counted, although there is no limit yet.
	if err != nil || tenants.Request("acme") != nil || tenants.Append("acme", 1<<30) != nil {
		t.Fatal("a tenant without limits is limited")
	}
	tenants.Set(Config{Default: Limits{MaxTurns: 2}, ByTenant: map[string]Limits{
		"acme": {MaxTurns: 3, MaxStreams: 1, RequestsPerSecond: 2},
	}})
	if a, b := tenants.Of("acme").MaxTurns, tenants.Of("other").MaxTurns; a != 3 || b != 2 {
		t.Errorf("limits of turns = %d, %d, want 3, 2", a, b)
	}
	_, err = tenants.Stream("acme")
	wantError(t, "stream", err, Error{Kind: Streams, Limit: 1})
	for range 2 {
		if err := tenants.Request("acme"); err != nil {
			t.Errorf("request = %v", err)
		}
	}
	wantError(t, "request", tenants.Request("acme"), Error{Kind: Requests, Limit: 2, Retry: time.Second / 2})
	tenants.Set(Config{Default: Limits{RequestsPerSecond: 10}})
	wantError(t, "request after the rate was raised", tenants.Request("acme"),
		Error{Kind: Requests, Limit: 10, Retry: time.Second / 10})
	clock.now = clock.now.Add(time.Second / 10)
	if err := tenants.Request("acme"); err != nil {
		t.Errorf("request at the raised rate = %v", err)
	}
	tenants.Set(Config{})
	if err := tenants.Request("acme"); err != nil {
		t.Errorf("request without a rate = %v", err)
	}
	release()
}

// TestIdleTenantsAreRemoved checks that tenants without open calls are removed after a while.
func TestIdleTenantsAreRemoved(t *testing.T) {
	tenants, clock := open(Limits{RequestsPerSecond: 10, MaxStreams: 1})
	release, err := tenants.Stream("streaming")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := tenants.Request(fmt.Sprint("tenant", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(tenants.active); n != 1001 {
		t.Errorf("%d tenants are active, want 1001", n)
	}
	clock.now = clock.now.Add(cleanInterval)
	if err := tenants.Request("next"); err != nil {
		t.Fatal(err)
	}
	if n := len(tenants.active); n != 2 {
		t.Errorf("%d tenants are active after a while, want streaming and next", n)
	}
	_, err = tenants.Stream("streaming")
	wantError(t, "second stream", err, Error{Kind: Streams, Limit: 1})
	release()
	clock.now = clock.now.Add(cleanInterval)
	_ = tenants.Request("next")
	if n := len(tenants.active); n != 1 {
		t.Errorf("%d tenants are active after the release, want next", n)
	}
}

// TestTooManyActive fills the server with active tenants. Those that are active continue.
func TestTooManyActive(t *testing.T) {
	tenants, clock := open(Limits{RequestsPerSecond: 2})
	for i := range maxActive {
		if err := tenants.Request(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, "request of another tenant", tenants.Request("other"), Error{Kind: ActiveTenants, Limit: maxActive})
	if err := tenants.Request("0"); err != nil {
		t.Errorf("request of an active tenant = %v", err)
	}
	clock.now = clock.now.Add(cleanInterval)
	if err := tenants.Request("other"); err != nil {
		t.Errorf("request of another tenant later = %v", err)
	}
}

func TestNil(t *testing.T) {
	var tenants *Tenants
	release, err := tenants.Stream("acme")
	if err != nil || tenants.Request("acme") != nil || tenants.Append("acme", 1) != nil {
		t.Error("nil Tenants have a limit")
	}
	release()
}

// TestConcurrent checks that callers get exactly the burst, while the limits are set again.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 500
		config := Config{Default: Limits{RequestsPerSecond: burst, MaxStreams: 3}}
		tenants := New(config, time.Now)
		var group sync.WaitGroup
		var mu sync.Mutex
		accepted, open := 0, 0
		for range 8 {
			group.Go(func() {
				for range burst / 4 {
					tenants.Set(config)
					if tenants.Request("acme") == nil {
						mu.Lock()
						accepted++
						mu.Unlock()
					}
					release, err := tenants.Stream("acme")
					if err != nil {
						continue
					}
					mu.Lock()
					open++
					if open > 3 {
						t.Errorf("%d streams are open, want at most 3", open)
					}
					mu.Unlock()
					mu.Lock()
					open--
					mu.Unlock()
					release()
				}
			})
		}
		group.Wait()
		if accepted != burst {
			t.Errorf("%d requests were accepted, want %d", accepted, burst)
		}
	})
}
