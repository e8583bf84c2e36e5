package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// maxStep is the maximum number of conversations that one operation removes, and of entries that it
// reads to find them. A longer transaction would delay all other writes.
const maxStep = 256

// victimsForCreate returns the conversations to remove so that the tenant can have one more: first
// expired, which may be nil and is the expired conversation whose id is used again, then other
// expired ones, then the oldest. If the tenant is far above a lowered capacity, Sweep removes the
// rest.
func (t *txn) victimsForCreate(tenant string, expired *stored, now time.Time) ([]*stored, error) {
	var victims []*stored
	if expired != nil {
		victims = append(victims, expired)
	}
	limit := int64(t.options.Limits(tenant).MaxConversations)
	excess := t.countsOf(tenant).Conversations + 1 - limit
	if limit == 0 || excess <= int64(len(victims)) {
		return victims, nil
	}
	excess = min(excess, maxStep)
	if victims = t.appendVictims(victims, tenant, int(excess), now); len(victims) < int(excess) {
		return nil, store.ErrFull
	}
	return victims, nil
}

// appendVictims appends conversations that may be evicted to victims until it has n, or no more
// exist.
func (t *txn) appendVictims(victims []*stored, tenant string, n int, now time.Time) []*stored {
	victims = t.appendExpired(victims, tenant, n, now)
	// A skipped conversation has a running turn, is held, or is damaged in a way that an operator
	// should see. Very many may be skipped, so the next scan starts after them.
	skipping := true
	mayEvict := func(s *stored) bool {
		evictable := !s.record.Running() && !s.ephemeral.Held
		skipping = skipping && !evictable
		return evictable
	}
	if len(victims) >= n {
		return victims
	}
	start := t.evictionStart(tenant)
	for k := range t.walk(tenant, start[:], ascending) {
		key := layout.InnerKey(k)
		if skipping {
			t.evictFrom[tenant] = key
		}
		if victims = t.appendVictim(victims, tenant, key, mayEvict); len(victims) >= n {
			break
		}
	}
	return victims
}

// checkBytes returns a store.TenantBytesError if a value of size bytes, which takes the place of
// these conversations, would exceed the tenant's limit of bytes.
func (t *txn) checkBytes(tenant string, size int, replaced ...*stored) error {
	delta := int64(size)
	for _, s := range replaced {
		delta -= int64(s.size)
	}
	return t.options.Limits(tenant).CheckBytes(t.countsOf(tenant).Bytes, delta)
}

// evictionStart returns the key of a conversation of the tenant before which none may be evicted.
func (t *txn) evictionStart(tenant string) layout.InnerKey {
	if key, ok := t.evictFrom[tenant]; ok {
		return key
	}
	return t.tally.evictFrom[tenant]
}

// markEvictable records that a conversation may be evicted from now on.
func (t *txn) markEvictable(tenant string, key layout.InnerKey) {
	if start := t.evictionStart(tenant); bytes.Compare(key[:], start[:]) < 0 {
		t.evictFrom[tenant] = key
	}
}

// appendVictim appends the conversation with that key if mayEvict allows it and victims does not
// contain it.
func (t *txn) appendVictim(victims []*stored, tenant string, key layout.InnerKey,
	mayEvict func(*stored) bool,
) []*stored {
	s, err := t.loadAt(tenant, key)
	if err != nil || !mayEvict(s) {
		return victims
	}
	return appendUnique(victims, s)
}

// appendUnique appends a conversation of the same tenant if victims does not contain it.
func appendUnique(victims []*stored, s *stored) []*stored {
	if slices.ContainsFunc(victims, func(v *stored) bool { return v.place.Key == s.place.Key }) {
		return victims
	}
	return append(victims, s)
}

// evictExcess removes the oldest conversations of tenants that are above the capacity since it was
// lowered. It removes at most limit conversations.
func (s *Store) evictExcess(ctx context.Context, limit int) (more bool, err error) {
	var damage error // The first error of a tenant. The loop continues with the other tenants.
	for tenant, capacity := range s.tally.aboveCapacity(s.options.Limits) {
		for more = true; more; {
			step := min(limit, maxStep)
			if step <= 0 {
				return true, damage
			}
			evicted := 0
			err := s.do(ctx, tenant, 0, func(t *txn) error {
				now := s.options.Now()
				excess := int(t.countsOf(tenant).Conversations - capacity)
				victims := t.appendVictims(nil, tenant, min(excess, step), now)
				for _, victim := range victims {
					t.end(victim, now)
				}
				evicted, more = len(victims), len(victims) == step && excess > step
				return nil
			})
			if errors.Is(err, store.ErrCorrupt) {
				damage = cmp.Or(damage, err)
				break
			}
			if err != nil {
				return true, err
			}
			limit -= evicted
		}
	}
	return false, damage
}
