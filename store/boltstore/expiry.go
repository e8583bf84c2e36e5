package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
)

const (
	// maxDueLooks is the maximum of entries of expiry or ends that a step of the sweeper checks. If more
	// entries of one minute, or in ends of one second, are not due yet, due entries wait until that time
	// ends.
	maxDueLooks = 10_000
	// rest is how long a damaged conversation, and one that is session memory, is out of the
	// sweeper's way.
	rest = time.Hour
)

// Sweep implements store.Store. Conversations that only have to be moved to a later minute
// count towards the limit as well, so that a call does a bounded amount of work.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	if err := s.releaseLeft(ctx); err != nil {
		return true, fmt.Errorf("sweep: %w", err)
	}
	for _, q := range []queue{{expiryBucket, minuteOf, (*txn).sweep}, {endsBucket, secondOf, (*txn).sweepEnd}} {
		if limit, err = s.sweep(ctx, q, limit); err != nil {
			return true, fmt.Errorf("sweep: %w", err)
		}
		if limit <= 0 {
			return true, nil
		}
	}
	return s.shrink(ctx, limit)
}

// queue is a bucket of what is to end: in which slot of time an entry is, and how it ends.
type queue struct {
	bucket string
	slotOf func(nanosecond int64) uint32
	end    func(*txn, due, time.Time)
}

// sweep has the writer end what the entries of a queue lead to whose time has come, and
// returns what is left of the limit.
func (s *Store) sweep(ctx context.Context, q queue, limit int) (left int, err error) {
	for more := true; more && limit > 0; {
		var entries []due
		entries, more, err = s.due(ctx, q, min(limit, maxStep))
		if err == nil && len(entries) > 0 {
			err = s.do(ctx, 0, func(t *txn) error {
				now := s.options.Now()
				for _, e := range entries {
					q.end(t, e, now)
				}
				return nil
			})
		}
		if err != nil {
			return 0, err
		}
		limit -= len(entries)
	}
	return limit, nil
}

// due returns at most n entries whose time has come, and whether there are more. Damaged
// ones are stepped over.
func (s *Store) due(ctx context.Context, q queue, n int) (entries []due, more bool, err error) {
	now := nanosecond(s.options.Now())
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
			isDue := ok && e.at <= now
			if looks > maxDueLooks || isDue && len(entries) == n {
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
func (t *txn) sweep(e due, now time.Time) {
	entry := dueKey(e.slot, e.tenant, e.name)
	if t.expiry.Get(entry) == nil {
		return // Something else moved or removed it first.
	}
	key, ok := e.inner()
	s, err := t.at(e.tenant, key)
	switch {
	case !ok || errors.Is(err, store.ErrNotFound) || err == nil && s.place.minute != e.slot:
		t.del(t.expiry, entry) // Damage: the entry belongs to nothing.
	case err != nil:
		// What cannot be read is kept, for somebody to look into. Its id, and with it ids,
		// cannot be told; the entry left over by a delete is dropped above.
		t.del(t.expiry, entry)
		t.putDue(e.tenant, key, nanosecond(now.Add(rest)))
	case s.record.Expired(now, s.session):
		t.end(s, now)
	default:
		t.disarm(s)
		t.arm(s, nextLook(s, now))
	}
}

// nextLook is when a conversation that lives may have expired: not before the next minute
// while a turn runs. Session memory does not expire, but may be damaged.
func nextLook(s *stored, now time.Time) time.Time {
	next := now
	switch {
	case !s.session.IsZero():
		next = now.Add(rest)
	case s.record.Running():
		next = now.Truncate(time.Minute).Add(time.Minute)
	}
	if expire := s.record.ExpireTime(); expire.After(next) {
		return expire
	}
	return next
}
