// Package storetest holds the law of package store as tests that any store can be put to:
// one for each of its numbers, and one for each method and what is promised of it. Begin
// with [Run].
//
// What needs a crash to be seen, kill -9 and power loss, is left to the tests of the store.
package storetest

import (
	"testing"

	"github.com/parleyhq/parley/store"
)

// Subject is a store to be tested.
type Subject struct {
	// Open returns a store. Dir is empty at first; a durable store keeps all that it has
	// there, and is opened again with the same dir after Close. It fails the test when it
	// cannot open.
	Open func(t testing.TB, dir string, o store.Options) store.Store
	// Durable: what was written is there when the store is opened again.
	Durable bool
}

// Run puts the store to the whole law.
func Run(t *testing.T, s Subject) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Law01Concurrency", s.law01Concurrency},
		{"Law02NoSharedMemory", s.law02NoSharedMemory},
		{"Law03Durability", s.law03Durability},
		{"Law04Cancellation", s.law04Cancellation},
		{"Law05Expiry", s.law05Expiry},
		{"Law06Order", s.law06Order},
		{"Law07Observation", s.law07Observation},
		{"Law08Pages", s.law08Pages},
		{"Law09Requests", s.law09Requests},
		{"Law10End", s.law10End},
		{"Law11Capacity", s.law11Capacity},
		{"Law12Isolation", s.law12Isolation},
		{"Law13Sessions", s.law13Sessions},
		{"Law14Identity", s.law14Identity},
		{"Law15Headers", s.law15Headers},
		{"Create", s.create},
		{"Append", s.append},
		{"AppendChecks", s.appendChecks},
		{"Trim", s.trim},
		{"Offsets", s.offsets},
		{"Turns", s.turns},
		{"Events", s.events},
		{"Requests", s.requests},
		{"Update", s.update},
		{"Lease", s.lease},
		{"Clear", s.clear},
		{"Import", s.imports},
		{"Delete", s.delete},
		{"Purge", s.purge},
		{"Sessions", s.sessions},
		{"Read", s.read},
		{"KnownOrder", s.knownOrder},
		{"List", s.list},
		{"ListOldestFirst", s.listOldestFirst},
		{"ListByUpdateTime", s.listByUpdateTime},
		{"ListBounds", s.listBounds},
		{"Progress", s.progress},
		{"Abandoned", s.abandoned},
		{"Sweep", s.sweep},
		{"Stats", s.stats},
		{"Changes", s.changes},
		{"Model", s.model},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}
