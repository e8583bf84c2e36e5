package boltstore

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/cache"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
)

// tally holds the counts and other derived data of the committed state in memory. Only the writer
// changes it.
type tally struct {
	mu               sync.RWMutex
	tenants          map[string]layout.Counts
	total            layout.Counts
	expired, evicted int64

	epoch           layout.Epoch
	staleHolds      []string                   // keys in sessions whose entries in sessions have holds of ended processes
	evictFrom       map[string]layout.InnerKey // by tenant, see txn.evictionStart
	ephemeralCounts map[string]int             // number of ids in sessions, by tenant
	holders         map[string]int             // number of holders, by layout.IDKey; not in the file
	hasEphemeral    atomic.Bool                // sessions has entries
	recordEnds      map[string]time.Time       // by tenant: the first expiry of records that only the journal had

	// These fields belong to the writer's goroutine, which changes them before the commit.
	dueIndexes     map[string]*dueIndex // of tenants that reached their capacity
	usedDueIndexes map[string]bool      // tenants whose dueIndex the newest transaction may have changed
	lastCommitted  bool                 // the newest transaction was committed, or changed nothing

	// The writer's, too.
	journaled     bool                     // the store has a journal
	journalEntry  layout.Journal           // for the next transaction that writes to the file
	pendingCounts map[string]layout.Counts // of operations that only the journal contains, by tenant

	pending  *overlay.Set // the operations that only the journal contains
	cache    *cache.Cache // by layout.IDKey
	versions *versions
	guard    boltfile.PanicGuard
}

func newTally(cacheBytes int) *tally {
	return &tally{
		tenants: map[string]layout.Counts{}, evictFrom: map[string]layout.InnerKey{}, ephemeralCounts: map[string]int{},
		holders: map[string]int{}, dueIndexes: map[string]*dueIndex{}, usedDueIndexes: map[string]bool{},
		recordEnds: map[string]time.Time{}, pendingCounts: map[string]layout.Counts{},
		pending: overlay.NewSet(), cache: cache.New(cacheBytes), versions: newVersions(maxVersions),
	}
}

// resetDueIndexes is called at the beginning of a transaction. If the last one failed, it drops the
// indexes that it may have changed.
func (t *tally) resetDueIndexes() {
	if !t.lastCommitted {
		maps.DeleteFunc(t.dueIndexes, func(tenant string, _ *dueIndex) bool { return t.usedDueIndexes[tenant] })
	}
	clear(t.usedDueIndexes)
	t.lastCommitted = false
}

// dueIndex returns the dueIndex of a tenant for a transaction to change, or nil if there is none.
func (t *tally) dueIndex(tenant string) *dueIndex {
	s := t.dueIndexes[tenant]
	if s != nil {
		t.usedDueIndexes[tenant] = true
	}
	return s
}

// load reads the counts of all tenants. now is the time at which the file is opened.
func (t *tally) load(tx *bolt.Tx, now time.Time) error {
	t.epoch = layout.Epoch{Tx: tx.ID(), At: now}
	if err := t.loadEphemeral(tx); err != nil {
		return err
	}
	return tx.Bucket([]byte(layout.TenantsBucket)).ForEach(func(key, value []byte) error {
		tenant, rest, ok := layout.CutTenant(key)
		c, sound := layout.DecodeCounts(key, value)
		if !ok || len(rest) > 0 || !sound {
			return fmt.Errorf("%w: counts of a tenant do not match their checksum: %s", ErrDamaged, boltfile.Remedy)
		}
		t.tenants[tenant], t.total = c, t.total.Plus(c)
		return nil
	})
}

// loadEphemeral counts the ids in sessions, including damaged entries, since all of them count
// towards the limit.
func (t *tally) loadEphemeral(tx *bolt.Tx) error {
	b := tx.Bucket([]byte(layout.SessionsBucket))
	if b == nil {
		return nil // Files of the first versions have no sessions.
	}
	return b.ForEach(func(key, value []byte) error {
		if tenant, _, ok := layout.CutTenant(key); ok {
			t.ephemeralCounts[tenant]++
			t.hasEphemeral.Store(true)
			if entry, ok := layout.DecodeEphemeral(key, value); ok && entry.Held() {
				t.staleHolds = append(t.staleHolds, string(key))
				t.epoch.Tx = max(t.epoch.Tx, int(1-entry.DeleteAt)) // After Compact, transaction numbers start again.
			}
		}
		return nil
	})
}

// mayHaveEphemeral reports whether any id is ephemeral. If a caller gets false before its read
// transaction begins, the read need not read sessions: an entry that the transaction shows was
// added after the call. An entry that was removed before the call belonged to a conversation that
// had ended.
func (t *tally) mayHaveEphemeral() bool { return t.hasEphemeral.Load() }

// staleHoldCount returns the number of holds of ended processes that are still to be released in
// the file.
func (t *tally) staleHoldCount() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.staleHolds)
}

// of returns the counts of a tenant.
func (t *tally) of(tenant string) layout.Counts {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.tenants[tenant]
}

// all returns the counts over all tenants, and the numbers of conversations that expired and were
// evicted since the store was opened.
func (t *tally) all() (total layout.Counts, expired, evicted int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.total, t.expired, t.evicted
}

// aboveCapacity returns the capacities of the tenants that have more conversations than that.
func (t *tally) aboveCapacity(limits func(tenant string) store.Limits) map[string]int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	capacities := map[string]int64{}
	for tenant, c := range t.tenants {
		if capacity := int64(limits(tenant).MaxConversations); capacity > 0 && c.Conversations > capacity {
			capacities[tenant] = capacity
		}
	}
	return capacities
}

// apply adds the changes of a committed transaction.
func (t *tally) apply(committed *txn) {
	t.versions.apply(committed.versions)
	if len(committed.logged) == 0 {
		t.cache.Remove(committed.changedKeys())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for tenant, c := range committed.counts {
		t.total = t.total.Plus(c.Minus(t.tenants[tenant]))
		if c == (layout.Counts{}) {
			delete(t.tenants, tenant)
			delete(t.dueIndexes, tenant)
			committed.evictFrom[tenant] = layout.InnerKey{}
		} else {
			t.tenants[tenant] = c
			// The index also has entries of removed conversations. Reading it again costs little
			// compared with the writes that the tenant needs to reach its capacity.
			if 2*c.Conversations < int64(committed.options.Limits(tenant).MaxConversations) {
				delete(t.dueIndexes, tenant)
			}
		}
	}
	t.expired, t.evicted = t.expired+committed.expired, t.evicted+committed.evicted
	t.staleHolds = t.staleHolds[committed.released:]
	mergeChanged(t.evictFrom, committed.evictFrom)
	mergeChanged(t.ephemeralCounts, committed.ephemeralCounts)
	mergeChanged(t.holders, committed.holders)
	t.journalEntry.Folded = max(t.journalEntry.Folded, committed.foldedThrough)
	for tenant, c := range committed.unfolded {
		t.addPending(tenant, layout.Counts{}.Minus(c))
	}
	t.hasEphemeral.Store(len(t.ephemeralCounts) > 0)
	t.lastCommitted = true
}

// noteRecordEnd notes when a record of a tenant expires that only the journal has.
func (t *tally) noteRecordEnd(tenant string, end time.Time) {
	if end.IsZero() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if first, ok := t.recordEnds[tenant]; !ok || end.Before(first) {
		t.recordEnds[tenant] = end
	}
}

// takeRecordEnds returns the tenants with a record that has expired and may be only in the journal, and forgets them.
func (t *tally) takeRecordEnds(now time.Time) (tenants []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tenant, first := range t.recordEnds {
		if !first.After(now) {
			tenants = append(tenants, tenant)
			delete(t.recordEnds, tenant)
		}
	}
	return tenants
}

// addPending adds to pendingCounts.
func (t *tally) addPending(tenant string, c layout.Counts) {
	mergeChanged(t.pendingCounts, map[string]layout.Counts{tenant: t.pendingCounts[tenant].Plus(c)})
}

// mergeChanged copies changed values and deletes those that became zero.
func mergeChanged[V comparable](values, changed map[string]V) {
	var zero V
	for key, v := range changed {
		if v == zero {
			delete(values, key)
		} else {
			values[key] = v
		}
	}
}

// maxVersions is the maximum number of conversations in versions. They take about 20 MB.
const maxVersions = 100_000

// versions caches the version of conversations that this process has written. With it, a read that
// knows the version needs no transaction to see that nothing has changed; the transaction would be
// a fourth of the cost of its call.
//
// The cache has the committed state. Readers can see a commit in the file before the writer has
// updated the cache. So the writer removes changed conversations before the commit. Otherwise a
// reader could see the change in the file, and another one could afterwards get "unchanged" from
// the cache.
type versions struct {
	mu     sync.RWMutex
	limit  int
	byID   map[string]version // by layout.IDKey; nil after close
	closed bool
}

// version is a cached version. The zero value matches no version.
type version struct {
	known   store.Known
	expires time.Time
	running bool
}

func newVersions(limit int) *versions {
	return &versions{limit: limit, byID: map[string]version{}}
}

// unchanged reports whether the conversation with a key in ids is certainly live and in the known state. The caller
// has read the state of its id before.
func (v *versions) unchanged(key string, known store.Known, now time.Time, ephemeral record.Ephemeral) bool {
	of := v.get(key)
	return known.Is(of.known) && !ephemeral.Expired(now, of.expires, of.running)
}

// get returns the version of a conversation, or the zero value.
func (v *versions) get(key string) version {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.byID[key]
}

// remove removes the changed conversations from the cache.
func (v *versions) remove(changed map[string]version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range changed {
		delete(v.byID, key)
	}
}

// apply adds the changes of a committed transaction. Above the limit it removes arbitrary
// conversations, whose readers read the file.
func (v *versions) apply(changed map[string]version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	mergeChanged(v.byID, changed)
	for key := range v.byID {
		if len(v.byID) <= v.limit {
			return
		}
		delete(v.byID, key)
	}
}

// close removes all conversations for good.
func (v *versions) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed, v.byID = true, nil
}

// recordVersion records the version that the conversation has after this transaction.
func (t *txn) recordVersion(tenant string, r *record.Record) {
	c := r.Conversation()
	t.versions[string(layout.IDKey(tenant, c.GetId()))] = version{
		known:   store.Known{Version: c.GetVersion(), UID: c.GetUid()},
		expires: r.ExpireTime(), running: r.Running(),
	}
}

// describeCommit describes a commit of these operations that began at an instant and ends now.
func describeCommit(batch []*operation, began time.Time) store.Commit {
	c := store.Commit{Seconds: time.Since(began).Seconds(), Operations: len(batch)}
	for _, op := range batch {
		c.WaitSeconds = max(c.WaitSeconds, began.Sub(op.queued).Seconds()) // Negative if it was queued later.
	}
	return c
}
