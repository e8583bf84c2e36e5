// Package storetest tests whether a store follows the law of package store. It has one test for
// each law, and tests of each method. Effects of a crash (kill -9, power loss) are tested by the
// stores themselves. Start at [Run].
package storetest

import (
	"testing"

	"github.com/parleyhq/parley/store"
)

// Subject is a store to test.
type Subject struct {
	// Open opens a store. dir is empty at first. A durable store keeps all its data in dir and is
	// opened again with the same dir after Close. Open fails the test if the store cannot be
	// opened.
	Open func(t testing.TB, dir string, o store.Options) store.Store
	// Durable reports whether data survives Close.
	Durable bool
	// Together reports that Open may be called for a dir that is open already, as another process would. It adds the
	// tests of law 21.
	Together bool
}

// RunVariant is Run for one more configuration of a store that Run tests already. It skips the tests if they would take
// minutes: with -short, and with the race detector, which makes them five times as slow and has seen the code in Run.
func RunVariant(t *testing.T, s Subject) {
	t.Helper()
	if testing.Short() || raceDetector {
		t.Skip("left out with -short and with the race detector; make testlaws runs it")
	}
	Run(t, s)
}

// Run runs all tests with the store.
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
		{"Law05NoExpiry", s.law05NoExpiry},
		{"Law06Order", s.law06Order},
		{"Law07Observation", s.law07Observation},
		{"Law08Pages", s.law08Pages},
		{"Law09Requests", s.law09Requests},
		{"Law10End", s.law10End},
		{"Law11Capacity", s.law11Capacity},
		{"Law11ChangedLimits", s.law11ChangedLimits},
		{"Law11NoEviction", s.law11NoEviction},
		{"Law12Isolation", s.law12Isolation},
		{"Law13Ephemeral", s.law13Ephemeral},
		{"Law14Identity", s.law14Identity},
		{"Law15Headers", s.law15Headers},
		{"Law16Bytes", s.law16Bytes},
		{"Law16KeepAll", s.law16KeepAll},
		{"Law17Queued", s.law17Queued},
		{"Law18Replacing", s.law18Replacing},
		{"Law19Records", s.law19Records},
		{"Law19Bytes", s.law19Bytes},
		{"Law19FullTenant", s.law19FullTenant},
		{"Law19Counters", s.law19Counters},
		{"Law19TogetherRead", s.law19TogetherRead},
		{"Law19TenantRevisions", s.law19TenantRevisions},
		{"Law19SameRequest", s.law19SameRequest},
		{"Law20Turns", s.law20Turns},
		{"Law20MaxTurns", s.law20MaxTurns},
		{"Law21Processes", s.law21Processes},
		{"Create", s.create},
		{"Append", s.append},
		{"AppendChecks", s.appendChecks},
		{"AppendCreateWith", s.appendCreateWith},
		{"Trim", s.trim},
		{"Offsets", s.offsets},
		{"Turns", s.turns},
		{"Events", s.events},
		{"Requests", s.requests},
		{"Update", s.update},
		{"Lease", s.lease},
		{"Clear", s.clear},
		{"Replace", s.replace},
		{"Remove", s.remove},
		{"Import", s.imports},
		{"Delete", s.delete},
		{"Purge", s.purge},
		{"Holds", s.holds},
		{"RetryRelease", s.retryRelease},
		{"Read", s.read},
		{"ReadRanges", s.ranges},
		{"KnownOrder", s.knownOrder},
		{"List", s.list},
		{"ListOldestFirst", s.listOldestFirst},
		{"ListByUpdateTime", s.listByUpdateTime},
		{"ListBounds", s.listBounds},
		{"Progress", s.progress},
		{"Abandoned", s.abandoned},
		{"Sweep", s.sweep},
		{"Tenants", s.tenants},
		{"Stats", s.stats},
		{"Changes", s.changes},
		{"Model", s.model},
		{"ModelRecords", s.recordModel},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}
