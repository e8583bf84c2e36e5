package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/fairqueue"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

const (
	// maxDueScan is the maximum number of entries of expiry or ends that a step of the sweeper
	// reads. If more entries of one minute (in ends, of one second) are not due yet, due entries
	// wait until that minute or second ends.
	maxDueScan = 10_000
	// deferPeriod is how long the sweeper skips a damaged or ephemeral conversation.
	deferPeriod = time.Hour
)

// Sweep implements store.Store. A conversation whose entry is only moved to a later minute counts
// towards the limit, too, so that a call does a bounded amount of work. Sweep continues after
// damage and returns the first such error at the end.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	damage := s.releaseStale(ctx)
	for _, b := range []dueBucket{
		{layout.ExpiryBucket, layout.MinuteOf, (*txn).sweepExpiry},
		{layout.EndsBucket, layout.SecondOf, (*txn).sweepEphemeral},
	} {
		if damage == nil || errors.Is(damage, store.ErrCorrupt) {
			limit, err = s.sweepBucket(ctx, b, limit)
			damage = cmp.Or(damage, err)
		}
	}
	more = true
	if limit > 0 && (damage == nil || errors.Is(damage, store.ErrCorrupt)) {
		more, err = s.evictExcess(ctx, limit)
		damage = cmp.Or(damage, err)
	}
	if damage != nil {
		return true, fmt.Errorf("sweep: %w", damage)
	}
	return more, nil
}

// dueBucket is a bucket whose entries are due at a time. It has the slot of time of an entry and
// the action that ends it.
type dueBucket struct {
	bucket string
	slotOf func(nanosecond int64) uint32
	end    func(*txn, layout.DueEntry, time.Time)
}

// key returns a key of an entry that is unique over all due buckets.
func (b dueBucket) key(e layout.DueEntry) string {
	return b.bucket + string(layout.DueKey(e.Slot, e.Tenant, e.Name))
}

// sweepBucket makes the writer end the conversations of the due entries of a bucket. It returns
// what remains of the limit. An entry that fails because of damage is deferred.
func (s *Store) sweepBucket(ctx context.Context, due dueBucket, limit int) (remaining int, damage error) {
	for more := true; more && limit > 0; {
		entries, moreDue, err := s.readDue(ctx, due, min(limit, maxStep))
		more = moreDue || err != nil && len(entries) > 0
		if len(entries) > 0 {
			err = cmp.Or(applyBisecting(entries, func(entries []layout.DueEntry) error {
				return s.writer.do(ctx, fairqueue.Upkeep, 0, func(t *txn) error {
					now := s.options.Now()
					for _, e := range entries {
						due.end(t, e, now)
					}
					return nil
				})
			}, func(e layout.DueEntry) {
				s.corruptCalls.Add(1)
				s.deferred.add(due.key(e), s.options.Now().Add(deferPeriod))
			}), err)
		}
		limit -= len(entries)
		damage = cmp.Or(damage, err)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			break
		}
	}
	return limit, damage
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

// deferredEntries holds the entries that the sweeper skips, each until a time. The zero value is
// usable.
type deferredEntries struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (d *deferredEntries) add(key string, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until == nil {
		d.until = map[string]time.Time{}
	}
	d.until[key] = until
}

// contains reports whether an entry is deferred.
func (d *deferredEntries) contains(key string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	until, ok := d.until[key]
	if ok && !until.After(now) {
		delete(d.until, key)
	}
	return until.After(now)
}

// readDue returns at most n due entries and whether there are more. It skips damaged and deferred
// entries. If the error is store.ErrCorrupt, the entries are those before the damage.
func (s *Store) readDue(ctx context.Context, due dueBucket, n int) (entries []layout.DueEntry, more bool, err error) {
	at := s.options.Now()
	now := layout.Nanosecond(at)
	err = s.view(ctx, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(due.bucket))
		if b == nil {
			return nil // Files of the first versions have no ends.
		}
		c, scanned := b.Cursor(), 0
		for k, v := c.First(); k != nil; k, v = c.Next() {
			e, ok := layout.DecodeDue(k, v)
			if ok && e.Slot > due.slotOf(now) {
				break
			}
			scanned++
			isDue := ok && e.At <= now && !s.deferred.contains(due.key(e), at)
			if scanned > maxDueScan || isDue && len(entries) == n {
				more = len(entries) > 0
				break
			}
			if isDue {
				entries = append(entries, e)
			}
		}
		return nil
	})
	return entries, more, err
}

// sweepExpiry removes the conversation of an entry in expiry if it has expired. Otherwise it moves
// the entry to the time of the next check.
func (t *txn) sweepExpiry(e layout.DueEntry, now time.Time) {
	entry := layout.DueKey(e.Slot, e.Tenant, e.Name)
	if t.expiry.Get(entry) == nil {
		return // Another operation moved or removed the entry first.
	}
	key, ok := e.InnerKey()
	s, err := t.loadAt(e.Tenant, key)
	if err == nil && s.place.Minute != e.Slot {
		// Damage: the entry has no conversation, or was moved while the record could not be read.
		t.del(t.expiry, entry)
		if t.expiry.Get(layout.ExpiryKey(s.place.Minute, s.tenant, s.place.Key)) != nil {
			return
		}
	}
	switch {
	case !ok || errors.Is(err, store.ErrNotFound):
		t.del(t.expiry, entry) // Damage: the entry has no conversation.
	case err != nil:
		// A conversation that cannot be read stays, so that an operator can inspect it. Its id is
		// unknown, so its entry in ids cannot be updated. After a delete, the case above removes
		// the entry that is written here.
		t.del(t.expiry, entry)
		t.putExpiryEntry(e.Tenant, key, layout.Nanosecond(now.Add(deferPeriod)))
	case s.record.Expired(now, s.ephemeral):
		t.end(s, now)
	default:
		t.moveExpiry(s, nextCheck(s, now))
	}
}

// nextCheck returns the earliest time at which a live conversation may have expired. While a turn
// runs, that is not before the next minute. An ephemeral conversation does not expire, but is
// checked because its entry in ends may be damaged.
func nextCheck(s *stored, now time.Time) time.Time {
	next := now
	switch {
	case !s.ephemeral.IsZero():
		next = now.Add(deferPeriod)
	case s.record.Running():
		next = now.Truncate(time.Minute).Add(time.Minute)
	}
	if expire := s.record.ExpireTime(); expire.After(next) {
		return expire
	}
	return next
}
