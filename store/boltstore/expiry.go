package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/google/btree"
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
	// noSpacePeriod is how long it skips a record of a tenant whose removal needs space that the disk does not have.
	noSpacePeriod = time.Minute
)

// Sweep implements store.Store. A conversation whose entry is only moved to a later minute counts
// towards the limit, too, so that a call does a bounded amount of work. Sweep continues after
// damage and returns the first such error at the end.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	damage := s.releaseStale(ctx)
	sweepDue := func(bucket string, slotOf func(int64) uint32, end func(*txn, layout.DueEntry, time.Time)) func() error {
		return func() (err error) {
			limit, err = s.sweepBucket(ctx, dueBucket{bucket, slotOf, end}, limit)
			return err
		}
	}
	for _, sweep := range []func() error{
		sweepDue(layout.ExpiryBucket, layout.MinuteOf, (*txn).sweepExpiry),
		sweepDue(layout.EndsBucket, layout.SecondOf, (*txn).sweepEphemeral),
		func() error { limit, err = s.sweepOrphans(ctx, limit); return err },
		func() error { return s.foldRecordEnds(ctx) }, // Last, since it needs space.
		sweepDue(layout.RecordEndsBucket, layout.SecondOf, func(t *txn, e layout.DueEntry, now time.Time) {
			if !t.sweepRecord(e, now) {
				s.deferred.add(dueBucket{bucket: layout.RecordEndsBucket}.key(e), now.Add(noSpacePeriod))
			}
		}),
	} {
		if damage == nil || errors.Is(damage, store.ErrCorrupt) {
			damage = cmp.Or(damage, sweep())
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
			return nil // Files of the first versions have no ends, and files without records no recordends.
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

// dueIndex is the in-memory index of one tenant's entries in expiry and ends whose slot has begun,
// ordered by time. A slot is a minute of expiry or a second of ends. A slot may have very many
// entries that are not due yet, and each create of a tenant at its capacity needs the due ones. So
// each entry is read once and stays in the index until it is due.
//
// An entry that was removed from the file stays in the index until it is due. An entry that is
// added to a slot that was read is added to the index, too.
type dueIndex struct {
	expiry, ends dueQueue
}

// dueQueue is the part of a dueIndex for one bucket.
type dueQueue struct {
	nextSlot uint32 // first slot that was not read
	entries  *btree.BTreeG[layout.DueEntry]
}

func newDueQueue() dueQueue {
	const degree = 32
	return dueQueue{entries: btree.NewG(degree, func(a, b layout.DueEntry) bool {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Name, b.Name)) < 0
	})}
}

// read reads the entries of all slots up to and including slot.
func (q *dueQueue) read(b *bolt.Bucket, tenant string, slot uint32) {
	if slot < q.nextSlot {
		return
	}
	for e := range entriesOf(b, tenant, q.nextSlot, slot) {
		q.entries.ReplaceOrInsert(e)
	}
	q.nextSlot = slot + 1
}

// add adds an entry that was added to the file, if its slot was read.
func (q *dueQueue) add(e layout.DueEntry) {
	if e.Slot < q.nextSlot {
		q.entries.ReplaceOrInsert(e)
	}
}

// popDue removes and yields the due entries, the earliest first. After the loop, the caller adds
// those that must stay.
func (q *dueQueue) popDue(now time.Time) iter.Seq[layout.DueEntry] {
	return func(yield func(layout.DueEntry) bool) {
		for {
			e, ok := q.entries.Min()
			if !ok || e.At > layout.Nanosecond(now) {
				return
			}
			q.entries.DeleteMin()
			if !yield(e) {
				return
			}
		}
	}
}

// readDueIndex returns the dueIndex of a tenant, read up to the slots of now.
func (t *txn) readDueIndex(tenant string, now time.Time) *dueIndex {
	s := t.tally.dueIndex(tenant)
	if s == nil {
		s = &dueIndex{expiry: newDueQueue(), ends: newDueQueue()}
		t.tally.dueIndexes[tenant], t.tally.usedDueIndexes[tenant] = s, true
	}
	s.expiry.read(t.expiry, tenant, layout.MinuteOf(layout.Nanosecond(now)))
	s.ends.read(t.ends, tenant, layout.SecondOf(layout.Nanosecond(now)))
	return s
}

// appendExpired appends expired conversations of the tenant, swept or not, to victims until it has
// n. It moves due entries of conversations that have not expired to their new times, as the sweeper
// does.
func (t *txn) appendExpired(victims []*stored, tenant string, n int, now time.Time) []*stored {
	if len(victims) >= n {
		return victims
	}
	index := t.readDueIndex(tenant, now)
	var keep []layout.DueEntry // entries to keep: if the operation is refused, they stay in the file
	for e := range index.expiry.popDue(now) {
		key, _ := e.InnerKey()
		s, err := t.loadAt(tenant, key)
		switch {
		case err != nil: // The conversation was removed or is damaged.
		case s.record.Expired(now, s.ephemeral):
			victims, keep = appendUnique(victims, s), append(keep, e)
		case s.place.Minute == e.Slot:
			t.moveExpiry(s, nextCheck(s, now))
		}
		if len(victims) >= n {
			break
		}
	}
	for _, e := range keep {
		index.expiry.add(e)
	}
	if len(victims) >= n {
		return victims
	}
	keep = nil
	for e := range index.ends.popDue(now) {
		if s, err := t.load(tenant, e.Name, head); err == nil && s != nil && s.ephemeral.HasEnded(now) {
			victims, keep = appendUnique(victims, s), append(keep, e)
		}
		if len(victims) >= n {
			break
		}
	}
	for _, e := range keep {
		index.ends.add(e)
	}
	return victims
}

// countEnded returns how many ids of a tenant, at most n, belong to ephemeral conversations that
// have ended and were not swept.
func (t *txn) countEnded(tenant string, n int, now time.Time) int {
	index := t.readDueIndex(tenant, now)
	found := map[string]layout.DueEntry{} // by id, since the index may have several entries of one id
	for e := range index.ends.popDue(now) {
		if t.ephemeralState(tenant, e.Name).HasEnded(now) {
			found[e.Name] = e
		}
		if len(found) >= n {
			break
		}
	}
	for _, e := range found {
		index.ends.add(e)
	}
	return len(found)
}

// entriesOf yields a tenant's entries in expiry or ends from one slot to another, both included. It
// skips all entries of other tenants in a slot with one seek.
func entriesOf(b *bolt.Bucket, tenant string, from, to uint32) iter.Seq[layout.DueEntry] {
	return func(yield func(layout.DueEntry) bool) {
		own := layout.TenantKey(tenant)
		c := b.Cursor()
		k, v := c.Seek(append(binary.BigEndian.AppendUint32(nil, from), own...))
		for k != nil {
			if len(k) < 4 {
				k, v = c.Next() // The key is damaged.
				continue
			}
			slot := binary.BigEndian.Uint32(k)
			if slot > to {
				return
			}
			prefix := slices.Concat(k[:4], own)
			switch {
			case bytes.HasPrefix(k, prefix):
				if e, ok := layout.DecodeDue(k, v); ok {
					e.Tenant = tenant // one string for all entries
					if !yield(e) {
						return
					}
				}
				k, v = c.Next()
			case bytes.Compare(k, prefix) < 0:
				k, v = c.Seek(prefix)
			default:
				k, v = c.Seek(binary.BigEndian.AppendUint32(nil, slot+1))
			}
		}
	}
}
