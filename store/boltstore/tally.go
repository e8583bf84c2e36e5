package boltstore

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

// tally holds the counts of the committed state in memory. Only the writer changes it.
type tally struct {
	mu               sync.RWMutex
	tenants          map[string]counts
	total            counts
	expired, evicted int64

	epoch           epoch
	staleHolds      []string            // idKeys of session memory that ended processes held, in the file still
	evictFrom       map[string]innerKey // see txn.passedOver
	ephemeralCounts map[string]int      // how many ids of a tenant sessions has
	holders         map[string]int      // of ids, by idKey; nothing of it is in the file
	hasEphemeral    atomic.Bool         // sessions is not empty

	// These belong to the writer alone, which changes them before the commit.
	dueIndexes     map[string]*dueIndex // of tenants that reached their capacity
	usedDueIndexes map[string]bool      // tenants of soon that the newest transaction may have changed
	lastCommitted  bool                 // the newest transaction was committed, or changed nothing

	versions *versions
	guard    panicGuard
}

func newTally() *tally {
	return &tally{tenants: map[string]counts{}, evictFrom: map[string]innerKey{}, ephemeralCounts: map[string]int{}, holders: map[string]int{}, dueIndexes: map[string]*dueIndex{}, usedDueIndexes: map[string]bool{}, versions: newVersions(maxVersions)}
}

// beginSoon clears soon if the last transaction failed, since it may have changed soon.
func (t *tally) resetDueIndexes() {
	if !t.lastCommitted {
		maps.DeleteFunc(t.dueIndexes, func(tenant string, _ *dueIndex) bool { return t.usedDueIndexes[tenant] })
	}
	clear(t.usedDueIndexes)
	t.lastCommitted = false
}

// soonOf returns what soon has of a tenant, for a transaction to change; nil for nothing.
func (t *tally) dueIndex(tenant string) *dueIndex {
	s := t.dueIndexes[tenant]
	if s != nil {
		t.usedDueIndexes[tenant] = true
	}
	return s
}

// load reads the counts of all tenants, at this instant.
func (t *tally) load(tx *bolt.Tx, now time.Time) error {
	t.epoch = epoch{tx: tx.ID(), at: now}
	if err := t.loadEphemeral(tx); err != nil {
		return err
	}
	return tx.Bucket([]byte(tenantsBucket)).ForEach(func(key, value []byte) error {
		tenant, rest, ok := cutTenant(key)
		c, sound := decodeCounts(key, value)
		if !ok || len(rest) > 0 || !sound {
			return fmt.Errorf("%w: counts of a tenant do not match their checksum: %s", ErrDamaged, remedy)
		}
		t.tenants[tenant], t.total = c, t.total.plus(c)
		return nil
	})
}

// loadSessions counts the ids in sessions, damaged or not: each takes a place.
func (t *tally) loadEphemeral(tx *bolt.Tx) error {
	b := tx.Bucket([]byte(sessionsBucket))
	if b == nil {
		return nil // The file is of a version that had none.
	}
	return b.ForEach(func(key, value []byte) error {
		if tenant, _, ok := cutTenant(key); ok {
			t.ephemeralCounts[tenant]++
			t.hasEphemeral.Store(true)
			if m, ok := decodeEphemeral(key, value); ok && m.held() {
				t.staleHolds = append(t.staleHolds, string(key))
				t.epoch.tx = max(t.epoch.tx, int(1-m.deleteAt)) // Compact begins to count transactions anew.
			}
		}
		return nil
	})
}

// someSessions reports whether any id is session memory. Whoever asks ahead of a read
// transaction, and hears that none is, need not look into sessions: what comes into it
// later has come after the question, and what went out of it before was gone by then.
func (t *tally) mayHaveEphemeral() bool { return t.hasEphemeral.Load() }

// leftBehind is how many ids are to be released that ended processes held.
func (t *tally) staleHoldCount() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.staleHolds)
}

// of returns the counts of a tenant.
func (t *tally) of(tenant string) counts {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.tenants[tenant]
}

// all returns the counts over all tenants, and how many conversations have expired and
// have been evicted since the store was opened.
func (t *tally) all() (total counts, expired, evicted int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.total, t.expired, t.evicted
}

// above returns the tenants that have more conversations than that.
func (t *tally) above(conversations int64) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var tenants []string
	for tenant, c := range t.tenants {
		if c.conversations > conversations {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}

// settle takes over what a transaction has changed, once it is committed.
func (t *tally) apply(x *txn) {
	t.versions.apply(x.versions)
	t.mu.Lock()
	defer t.mu.Unlock()
	for tenant, c := range x.counts {
		t.total = t.total.plus(c.minus(t.tenants[tenant]))
		if c == (counts{}) {
			delete(t.tenants, tenant)
			delete(t.dueIndexes, tenant)
			x.evictFrom[tenant] = innerKey{}
		} else {
			t.tenants[tenant] = c
			// It holds entries of conversations that were removed as well. Reading it again costs little
			// beside what the tenant must write until it is at its capacity.
			if 2*c.conversations < int64(x.options.MaxConversations) {
				delete(t.dueIndexes, tenant)
			}
		}
	}
	t.expired, t.evicted = t.expired+x.expired, t.evicted+x.evicted
	t.staleHolds = t.staleHolds[x.released:]
	mergeChanged(t.evictFrom, x.evictFrom)
	mergeChanged(t.ephemeralCounts, x.ephemeralCounts)
	mergeChanged(t.holders, x.holders)
	t.hasEphemeral.Store(len(t.ephemeralCounts) > 0)
	t.lastCommitted = true
}

// settle takes over values that have changed, and forgets those that are zero.
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
