package boltstore

import (
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/internal/record"
)

const (
	// maxDueLooks is how many entries of expiry a step looks at. Beyond so many of one
	// minute that are not due yet, those that are wait for the minute to end.
	maxDueLooks = 10_000
	// damagedRest is how long a damaged conversation is out of the sweeper's way.
	damagedRest = time.Hour
)

// Sweep implements store.Store. Conversations that only have to be moved to a later minute
// count towards the limit as well, so that a call does a bounded amount of work.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	for more = true; more; {
		step := min(limit, maxStep)
		if step <= 0 {
			return true, nil
		}
		var entries []due
		entries, more, err = s.due(ctx, step)
		if err == nil && len(entries) > 0 {
			err = s.writer.do(ctx, 0, func(t *txn) error {
				now := s.options.Now()
				for _, e := range entries {
					t.sweep(e, now)
				}
				return nil
			})
		}
		if err != nil {
			return true, fmt.Errorf("sweep: %w", err)
		}
		limit -= len(entries)
	}
	return s.shrink(ctx, limit)
}

// due returns at most n entries whose time has come, and whether there are more. Damaged
// ones are stepped over.
func (s *Store) due(ctx context.Context, n int) (entries []due, more bool, err error) {
	now := nanosecond(s.options.Now())
	err = s.view(ctx, func(tx *bolt.Tx) error {
		c, looks := tx.Bucket([]byte(expiryBucket)).Cursor(), 0
		for k, v := c.First(); k != nil; k, v = c.Next() {
			e, ok := decodeDue(k, v)
			if ok && e.minute > minuteOf(now) {
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

// sweep removes the conversation of an entry, or moves the entry to when it is to be looked
// at next.
func (t *txn) sweep(e due, now time.Time) {
	key := expiryKey(e.minute, e.tenant, e.key)
	if t.expiry.Get(key) == nil {
		return // Something else moved or removed it first.
	}
	value := t.conversations.Get(conversationKey(e.tenant, e.key))
	s, err := t.at(e.tenant, e.key)
	switch {
	case value == nil || err == nil && s.place.minute != e.minute:
		t.del(t.expiry, key) // Damage: the entry belongs to nothing.
	case err != nil:
		// What cannot be read is kept, for somebody to look into. Its id, and with it ids,
		// cannot be told; the entry left over by a delete is dropped above.
		t.del(t.expiry, key)
		t.putDue(e.tenant, e.key, nanosecond(now.Add(damagedRest)))
	case s.record.Expired(now):
		t.end(s, now)
	default:
		t.disarm(s)
		t.arm(s, nextLook(s.record, now))
	}
}

// nextLook is when a conversation that lives may have expired: not before the next minute
// while a turn runs.
func nextLook(r *record.Record, now time.Time) time.Time {
	next := now.Truncate(time.Minute).Add(time.Minute)
	if expire := r.ExpireTime(); !r.Running() || expire.After(next) {
		return expire
	}
	return next
}
