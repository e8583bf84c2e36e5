package boltstore

import (
	"fmt"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// tally holds the counts of the committed state in memory. Only the writer changes it.
type tally struct {
	mu               sync.RWMutex
	tenants          map[string]counts
	total            counts
	expired, evicted int64
}

func newTally() *tally { return &tally{tenants: map[string]counts{}} }

// load reads the counts of all tenants.
func (t *tally) load(tx *bolt.Tx) error {
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
func (t *tally) settle(x *txn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tenant, c := range x.counts {
		t.total = t.total.plus(c.minus(t.tenants[tenant]))
		if c == (counts{}) {
			delete(t.tenants, tenant)
		} else {
			t.tenants[tenant] = c
		}
	}
	t.expired, t.evicted = t.expired+x.expired, t.evicted+x.evicted
}
