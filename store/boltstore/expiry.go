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
)

const (
	// maxDueLooks is the maximum of entries of expiry or ends that a step of the sweeper checks. If more
	// entries of one minute, or in ends of one second, are not due yet, due entries wait until that time
	// ends.
	maxDueScan = 10_000
	// rest is how long a damaged conversation, and one that is session memory, is out of the
	// sweeper's way.
	deferPeriod = time.Hour
)

// Sweep implements store.Store. Conversations that only have to be moved to a later minute
// count towards the limit as well, so that a call does a bounded amount of work. What it cannot do for
// damage does not keep it from the rest: it returns the first error when it has done that.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	damage := s.releaseStale(ctx)
	for _, q := range []dueBucket{{expiryBucket, minuteOf, (*txn).sweepExpiry}, {endsBucket, secondOf, (*txn).sweepEphemeral}} {
		if damage == nil || errors.Is(damage, store.ErrCorrupt) {
			limit, err = s.sweepBucket(ctx, q, limit)
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

// queue is a bucket of what is to end: in which slot of time an entry is, and how it ends.
type dueBucket struct {
	bucket string
	slotOf func(nanosecond int64) uint32
	end    func(*txn, dueEntry, time.Time)
}

// key tells the entries of all queues apart.
func (q dueBucket) key(e dueEntry) string { return q.bucket + string(dueKey(e.slot, e.tenant, e.name)) }

// sweep has the writer end what the entries of a queue lead to whose time has come, and
// returns what is left of the limit. An entry that fails for damage rests.
func (s *Store) sweepBucket(ctx context.Context, q dueBucket, limit int) (left int, damage error) {
	for more := true; more && limit > 0; {
		entries, further, err := s.readDue(ctx, q, min(limit, maxStep))
		more = further || err != nil && len(entries) > 0
		if len(entries) > 0 {
			err = cmp.Or(applyBisecting(entries, func(entries []dueEntry) error {
				return s.writer.do(ctx, 0, func(t *txn) error {
					now := s.options.Now()
					for _, e := range entries {
						q.end(t, e, now)
					}
					return nil
				})
			}, func(e dueEntry) {
				s.corruptCalls.Add(1)
				s.deferred.add(q.key(e), s.options.Now().Add(deferPeriod))
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

// each applies something to items. If it fails for damage it is applied again to halves, so that only
// those items fail that are the cause. It returns the first error.
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

// resting holds which entries are out of the sweeper's way, and until when.
type deferredEntries struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (r *deferredEntries) add(key string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	r.until[key] = until
}

// has reports whether an entry rests.
func (r *deferredEntries) contains(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.until[key]
	if ok && !until.After(now) {
		delete(r.until, key)
	}
	return until.After(now)
}

// due returns at most n entries whose time has come, and whether there are more. Damaged
// ones are stepped over, and so are those that rest. With store.ErrCorrupt come those that lie before
// the damage.
func (s *Store) readDue(ctx context.Context, q dueBucket, n int) (entries []dueEntry, more bool, err error) {
	at := s.options.Now()
	now := nanosecond(at)
	err = s.view(ctx, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(q.bucket))
		if b == nil {
			return nil // The file is of a version that had none.
		}
		c, looks := b.Cursor(), 0
		for k, v := c.First(); k != nil; k, v = c.Next() {
			e, ok := decodeDue(k, v)
			if ok && e.slot > q.slotOf(now) {
				break
			}
			looks++
			isDue := ok && e.at <= now && !s.deferred.contains(q.key(e), at)
			if looks > maxDueScan || isDue && len(entries) == n {
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

// sweep removes the conversation of an entry of expiry, or moves the entry to when it is to
// be looked at next.
func (t *txn) sweepExpiry(e dueEntry, now time.Time) {
	entry := dueKey(e.slot, e.tenant, e.name)
	if t.expiry.Get(entry) == nil {
		return // Something else moved or removed it first.
	}
	key, ok := e.innerKey()
	s, err := t.loadAt(e.tenant, key)
	if err == nil && s.place.minute != e.slot {
		// Damage: the entry belongs to nothing, or it was moved while the record could not be read.
		t.del(t.expiry, entry)
		if t.expiry.Get(expiryKey(s.place.minute, s.tenant, s.place.key)) != nil {
			return
		}
	}
	switch {
	case !ok || errors.Is(err, store.ErrNotFound):
		t.del(t.expiry, entry) // Damage: the entry belongs to nothing.
	case err != nil:
		// What cannot be read is kept, for somebody to look into. Its id, and with it ids,
		// cannot be told; the entry left over by a delete is dropped above.
		t.del(t.expiry, entry)
		t.putExpiryEntry(e.tenant, key, nanosecond(now.Add(deferPeriod)))
	case s.record.Expired(now, s.ephemeral):
		t.end(s, now)
	default:
		t.deleteExpiry(s)
		t.setExpiry(s, nextCheck(s, now))
	}
}

// nextLook is when a conversation that lives may have expired: not before the next minute
// while a turn runs. Session memory does not expire, but may be damaged.
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
