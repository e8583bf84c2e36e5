package boltstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"github.com/google/btree"
	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

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
