package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// abandon ends a store as a kill of its process does: its leases end by themselves.
func (s *Store) abandon() {
	s.stop()
	<-s.renewed
	s.client.Close()
}

// TestExclusiveAfterKill: a second process waits for the lease of one that was killed.
func TestExclusiveAfterKill(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4, Exclusive: true, leaseTime: 3 * time.Second}
	o.Address = "first:50051"
	first, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open = %v, want nil", err)
	}
	first.abandon()
	o.Address = ""
	wait := "waits up to 3s for the lease of server " + first.server + " at first:50051 to end"
	if warnings := wantOpen(t, o); !strings.Contains(strings.Join(warnings, "\n"), wait) {
		t.Errorf("warnings = %q, want %q", warnings, wait)
	}
	// A process that stops ends its leases, so that the next does not wait.
	if warnings := wantOpen(t, o); strings.Contains(strings.Join(warnings, "\n"), "waits") {
		t.Errorf("warnings = %q, want no wait", warnings)
	}
}

// TestExclusiveBesideAnother: a second process fails while another has its leases. Other prefixes do not matter.
func TestExclusiveBesideAnother(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4, Exclusive: true, Address: "first:50051"}
	first, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open = %v, want nil", err)
	}
	defer first.Close()
	o.Address, o.leaseTime = "", 200*time.Millisecond // It waits less than the first has left.
	_, err = Open(t.Context(), o)
	want := `another server uses the store "parley": server ` + first.server +
		" at first:50051; stop it, use another prefix, or start each with --advertise-address"
	if !errors.Is(err, ErrInUse) || err.Error() != want {
		t.Errorf("Open beside another = %v, want %s", err, want)
	}
	o.leaseTime = 0 // A busy machine may take longer than 200 ms to open a store.
	other := o
	other.Prefix = "other"
	wantOpen(t, other)
	shared := o
	shared.Exclusive = false
	if _, err = Open(t.Context(), shared); !errors.Is(err, ErrInUse) || err.Error() != want {
		t.Errorf("shared Open beside an exclusive store = %v, want %s", err, want)
	}
	if err := first.Ping(t.Context()); err != nil {
		t.Errorf("Ping of the first = %v, want nil", err)
	}
}
