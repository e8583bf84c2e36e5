package redisstore

import (
	"errors"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

const testTurn = "0197c1b2-0000-7000-8000-000000000001"

// openShared opens a shared store with an address and a short lease.
func openShared(t *testing.T, engine *redistest.Server, address string) *Store {
	t.Helper()
	return openWith(t, Options{Buckets: 4, Address: address, leaseTime: time.Second}, engine.Addr())
}

func beginTurn(t *testing.T, s *Store, id, turn string) {
	t.Helper()
	_, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
		Begin: &parleyv1.Turn{Id: turn},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// leaseEnds waits until another process has no lease in any bucket. The test fails after some time.
func (s *Store) leaseEnds(t *testing.T, other *Store) bool {
	t.Helper()
	ticker := time.NewTicker(other.leaseTime / 10)
	defer ticker.Stop()
	for range 300 {
		held := false
		for _, b := range s.buckets {
			live, err := s.leases(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			held = held || live[other.server]
		}
		if !held {
			return true
		}
		<-ticker.C
	}
	return false
}

// TestOwner: each process knows which one answers a turn and how to call it, until its lease has ended.
func TestOwner(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	first, second := openShared(t, engine, "first:1"), openShared(t, engine, "second:2")
	want := func(s *Store, id string, owner store.Owner) {
		t.Helper()
		if got, err := s.Owner(t.Context(), "acme", id); err != nil || got != owner {
			t.Errorf("Owner of %s = %+v, %v, want %+v", id, got, err, owner)
		}
	}
	want(first, "a", store.Owner{})
	beginTurn(t, first, "a", testTurn)
	running := store.Owner{TurnID: testTurn, Server: first.Self()}
	want(first, "a", running)
	want(second, "a", running)
	if self := first.Self(); self.Address != "first:1" || len(self.Key) != keySize || self.Key == second.Self().Key {
		t.Errorf("Self = %+v, want the address first:1 and a key of its own", self)
	}
	first.abandon()
	if !second.leaseEnds(t, first) {
		t.Fatal("the lease of a process that was killed does not end")
	}
	want(second, "a", store.Owner{TurnID: testTurn})
}

// TestPeers: a process sees the others that can be called and have a lease.
func TestPeers(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	first, second := openShared(t, engine, "first:1"), openShared(t, engine, "second:2")
	third, silent := openShared(t, engine, "a-third:3"), openShared(t, engine, "")
	want := func(s *Store, peers ...store.Server) {
		t.Helper()
		if got, err := s.Peers(t.Context()); err != nil || !slices.Equal(got, peers) {
			t.Errorf("Peers = %v, %v, want %v", got, err, peers)
		}
	}
	want(first, third.Self(), second.Self())
	want(silent, third.Self(), first.Self(), second.Self())
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	want(first, second.Self())
}

// TestAddressInUse: two live processes cannot have one address.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	first := openShared(t, engine, "first:1")
	_, err := Open(t.Context(), Options{
		Client: clientOf(t, engine.URL(), Access{}), Buckets: 4, Address: "first:1", leaseTime: 100 * time.Millisecond,
	})
	want := `another server uses the store "parley": server ` + first.server +
		" at first:1; choose another address, or stop that server"
	if !errors.Is(err, ErrInUse) || err.Error() != want {
		t.Errorf("Open = %v, want %s", err, want)
	}
}
