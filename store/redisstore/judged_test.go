package redisstore

import (
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestLeasesAfterOutage: after an outage of the engine in which all leases have ended, a server ends neither turns nor
// holds of the others until they had the time of a lease to renew theirs.
func TestLeasesAfterOutage(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Setting("appendfsync", "always"))
	open := func(address string) *Store { // Its lease is so long that the test renews it.
		return openWith(t, Options{Buckets: 1, Address: address, leaseTime: time.Minute}, engine.Addr())
	}
	first, second := open("first:1"), open("second:2")
	beginTurn(t, first, "a", testTurn)
	if err := first.Hold(t.Context(), &store.Hold{Tenant: "acme", ConversationIDs: []string{"held"}}); err != nil {
		t.Fatal(err)
	}
	b := first.buckets[0]
	want := func(when string, abandoned int, held string) {
		t.Helper()
		turns, _, err := second.Abandoned(t.Context(), "")
		if err != nil || len(turns) != abandoned {
			t.Errorf("%s: Abandoned = %v, %v, want %d turns", when, turns, err, abandoned)
		}
		if err := second.releaseAbandoned(t.Context()); err != nil {
			t.Errorf("%s: releaseAbandoned = %v, want nil", when, err)
		}
		got, err := engine.Do("HGET", first.space("acme").key("em"), "held")
		if err != nil || got != held {
			t.Errorf("%s: state of the held id = %q, %v, want %q", when, got, err, held)
		}
	}
	renew := func() {
		t.Helper()
		for !t.Failed() { // The first commands use connections of before the restart.
			if err := second.renew(t.Context()); err == nil {
				return
			} else if !isUnavailable(err) {
				t.Fatal(err)
			}
		}
	}
	end := func(s *Store) {
		t.Helper()
		if _, err := engine.Do("ZADD", b.prefix+"ls", "1", s.server); err != nil {
			t.Fatal(err)
		}
	}
	waited := func() {
		second.judges.mu.Lock()
		defer second.judges.mu.Unlock()
		second.judges.all[0].from = time.Now()
	}

	engine.Kill()
	if err := second.renew(t.Context()); !isUnavailable(err) {
		t.Fatalf("renew without an engine = %v, want ErrUnavailable", err)
	}
	engine.Restart()
	end(first)
	want("before the renewal after an outage", 0, "h1")
	renew()
	want("after an outage", 0, "h1")

	waited()
	end(second) // As if the clock of the engine was set.
	want("before the renewal after a leap of the clock", 0, "h1")
	renew()
	want("after a leap of the clock", 0, "h1")

	waited()
	want("after the time of a lease", 1, "")
}
