package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/fairqueue"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
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
	// A skipped conversation has a running turn, is held, has no_eviction, or is damaged in a way that
	// an operator should see. Very many may be skipped, so the next scan starts after them.
	skipping := true
	mayEvict := func(s *stored) bool {
		evictable := !s.record.Running() && !s.ephemeral.Held && s.record.Evictable()
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

// checkBytes returns a store.TenantBytesError if a write that adds so many bytes, and removes these conversations with
// their records, would exceed the tenant's limit of bytes.
func (t *txn) checkBytes(tenant string, added int64, removed ...*stored) error {
	for _, s := range removed {
		added -= int64(s.size) + s.records.Bytes
	}
	return t.options.Limits(tenant).CheckBytes(t.countsOf(tenant).Bytes, added)
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

// Purge implements store.Store. It scans the tenant's conversations by create time, up to the first
// that is too young, or to a page that cannot be read. It continues after damaged conversations and
// returns the first such error at the end.
func (s *Store) Purge(ctx context.Context, p *store.Purge) (store.Purged, error) {
	w := purgeScan{tenant: p.Tenant, cutoff: s.options.Now().Add(-p.InactiveFor)}
	var purged store.Purged
	var damage error // the first error of damaged conversations
	for !w.done {
		keys, ids, err := s.nextInactive(ctx, &w)
		if errors.Is(err, store.ErrCorrupt) {
			damage, err, w.done = cmp.Or(damage, err), nil, true // The cursor cannot move past that page.
		}
		if err == nil && !p.DryRun && len(keys) > 0 {
			ids = nil
			err = applyBisecting(keys, func(keys []layout.InnerKey) error {
				var removed []string
				err := s.writer.do(ctx, p.Tenant, 0, func(t *txn) error {
					removed = t.purge(&w, keys, s.options.Now())
					return nil
				})
				if err == nil {
					ids = append(ids, removed...)
				}
				return err
			}, func(layout.InnerKey) { s.corruptCalls.Add(1) })
		}
		purged.Count += int64(len(ids))
		purged.SampleIDs = append(purged.SampleIDs, ids[:min(len(ids), store.MaxSampleIDs-len(purged.SampleIDs))]...)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return purged, fmt.Errorf("purge: %w", err)
		}
		damage = cmp.Or(damage, err)
	}
	if damage != nil {
		return purged, fmt.Errorf("purge: %w", damage)
	}
	return purged, nil
}

// purgeScan is the position of a Purge in the tenant's conversations.
type purgeScan struct {
	tenant string
	cutoff time.Time
	next   []byte // lower bound of the inner keys that were not read
	done   bool
}

// matches reports whether the conversation is to be purged.
func (p *purgeScan) matches(r *record.Record, now time.Time, s record.Ephemeral) bool {
	return !r.Conversation().GetLastAppendTime().AsTime().After(p.cutoff) && !r.Expired(now, s)
}

// nextInactive reads the next conversations and returns the keys and ids of those to be purged.
func (s *Store) nextInactive(ctx context.Context, p *purgeScan) (keys []layout.InnerKey, ids []string, err error) {
	now, mayHaveEphemeral := s.options.Now(), s.tally.mayHaveEphemeral()
	err = s.read(ctx, func(tx *bolt.Tx, r *reader) error {
		keys, ids = nil, nil
		scanned, sessions := 0, readStates(tx, s.tally.epoch, mayHaveEphemeral, p.tenant)
		var last []byte
		for key, value := range r.walk(p.tenant, p.next, ascending) {
			scanned, last = scanned+1, key
			if binary.BigEndian.Uint64(key) > uint64(layout.Nanosecond(p.cutoff)) {
				break
			}
			if r, err := record.UnmarshalHead(value); err == nil && p.matches(r, now, sessions.Of(r.Conversation().GetId())) {
				keys, ids = append(keys, layout.InnerKey(key)), append(ids, r.Conversation().GetId())
			}
			if scanned == maxStep {
				break
			}
		}
		if r.err != nil {
			return r.err
		}
		if last != nil {
			p.next = append(bytes.Clone(last), 0) // the least key after it
		}
		p.done = scanned < maxStep
		return nil
	})
	return keys, ids, err
}

// purge removes those of the conversations that still match, and returns their ids.
func (t *txn) purge(p *purgeScan, keys []layout.InnerKey, now time.Time) []string {
	var ids []string
	for _, key := range keys {
		s, err := t.loadAt(p.tenant, key)
		if err != nil || !p.matches(s.record, now, s.ephemeral) {
			continue
		}
		t.remove(s)
		t.changes = append(t.changes, s.record.RemovalChange(p.tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, now))
		ids = append(ids, s.id)
	}
	return ids
}

// foldRecordEnds folds the records of tenants of which one has expired and may be only in the journal, so that it has
// an entry in recordends. If the disk has no space, a later call tries again.
func (s *Store) foldRecordEnds(ctx context.Context) (damage error) {
	now := s.options.Now()
	for _, tenant := range s.tally.takeRecordEnds(now) {
		err := s.do(ctx, fairqueue.Upkeep, 0, func(t *txn) error {
			own, err := t.loadTenantRecords(tenant)
			if err == nil {
				err = t.checkFold(own.pending.Bytes(), boltfile.SpaceToFold(t.meta.Tx().DB()))
			}
			if err == nil {
				t.foldTenantRecords(own)
			}
			return err
		})
		if err != nil {
			s.tally.noteRecordEnd(tenant, now)
		}
		if !errors.Is(err, store.ErrNoSpace) {
			damage = cmp.Or(damage, err)
		}
	}
	return damage
}

// sweepRecord removes the tenant's record of an entry in recordends. It returns false without a change if the other
// records of the tenant must be folded first and the disk has no space for that.
func (t *txn) sweepRecord(e layout.DueEntry, now time.Time) bool {
	entry := layout.DueKey(e.Slot, e.Tenant, e.Name)
	if e.At > layout.Nanosecond(now) || t.recordEnds.Get(entry) == nil {
		return true // The clock was set back, or another operation was first.
	}
	pending, err := t.entry(layout.TenantKey(e.Tenant))
	if err == nil && pending != nil &&
		t.checkFold(pending.Records.Bytes(), boltfile.SpaceToFold(t.meta.Tx().DB())) != nil {
		return false
	}
	own, err := t.loadTenantRecords(e.Tenant)
	if err != nil {
		t.fail(err)
		return true
	}
	t.foldTenantRecords(own)
	value, err := t.fileValue(own.scope, e.Name)
	var s records.State
	if value != nil {
		s, err = records.StateOf(e.Name, value)
	}
	switch {
	case err != nil:
		t.fail(err)
		return true
	case value != nil && s.Expired(now):
		t.putRecords(own.scope, []pendingValue{{key: e.Name}})
		t.edited[cachedRecordKey(e.Tenant, "", e.Name)] = editedRecord{} // The clock may be set back.
		t.addTenantRecords(own, records.Counts{}.Minus(s.Counts))
	}
	t.del(t.recordEnds, entry) // Also an entry that is left over from damage.
	return true
}

// applyBisecting calls apply with items. If apply returns store.ErrCorrupt, applyBisecting calls it
// again with each half, so that only the items that cause the error fail. It calls failed for each
// of these and returns the first error.
func applyBisecting[T any](items []T, apply func([]T) error, failed func(T)) error {
	err := apply(items)
	if !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	if len(items) == 1 {
		failed(items[0])
		return err
	}
	middle := len(items) / 2
	first := applyBisecting(items[:middle], apply, failed)
	return cmp.Or(first, applyBisecting(items[middle:], apply, failed))
}
