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
	// Lanes is the number of buckets of a tenant. With 0 and 1, the complete law holds. With more, the bucket of a
	// conversation is the CRC-32C of its id modulo Lanes, the records of the tenant are in one bucket, and the law holds
	// with these exceptions:
	//
	//   - Order and observation (6, 7): the order of changes holds for each conversation and in each bucket. If one call
	//     changes several buckets, its changes are observed in one part for each bucket.
	//   - Pages (8): the pages of all buckets are merged by create time. Conversations with equal create times are in no
	//     order of creation. Total, [store.Store.TenantStats] and [store.Store.Tenants] read one bucket after the other
	//     and join the results. A tenant may be missing if its only conversation is deleted in one bucket while another
	//     one is created in another bucket.
	//   - Capacity (11): a bucket holds at most a quarter more than its share of the capacity, and 32, at any moment. In a
	//     full bucket, a new conversation replaces an expired one first, then the oldest one, or fails with ErrFull. After
	//     a sweep, the tenant has at most its capacity in all, unless its conversations cannot be evicted.
	//   - Ephemeral conversations (13): each bucket has its share of MaxHolds as its limit. Hold checks all buckets and
	//     then holds the ids in one bucket after the other. It exceeds the limit at most by the ids of concurrent Holds of
	//     other processes. A Hold or Release that fails with ErrUnavailable may have been made in some buckets.
	//   - Bytes (16): concurrent writes in several buckets may together exceed the limit of the tenant by the bytes that
	//     they add.
	//   - Records (19): a create with RecordsOf copies the records as they were at an instant during the call. A write of
	//     records of both scopes is one commit, except that a process that pauses during the write for longer than its
	//     lease may lose the part of the tenant.
	Lanes int
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
	type test struct {
		name string
		run  func(*testing.T)
	}
	tests := []test{
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
	}
	if s.Lanes > 1 {
		tests = append(tests, test{"Law11Lanes", s.law11Lanes})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}
