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

	"github.com/parleyhq/parley/store/internal/record"
)

// soon is the index in memory of one tenant's entries in expiry and ends whose slot has begun, the earliest
// first. A slot is a minute of expiry or a second of ends. It may have very many entries that are not due
// yet, and each create of a tenant at its capacity needs those that are. So each entry is read once and
// stays here until it is due.
//
// An entry that was removed from the file stays here until then. An entry that is added to a slot that was
// read is added here as well.
type soon struct {
	expiry, ends dueQueue
}

// dueQueue is the part of soon for one bucket.
type dueQueue struct {
	next    uint32 // first slot that was not read
	entries *btree.BTreeG[due]
}

func newDueQueue() dueQueue {
	const degree = 32
	return dueQueue{entries: btree.NewG(degree, func(a, b due) bool {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) < 0
	})}
}

// read reads the slots up to and including slot.
func (q *dueQueue) read(b *bolt.Bucket, tenant string, slot uint32) {
	if slot < q.next {
		return
	}
	for e := range dueOf(b, tenant, q.next, slot) {
		q.entries.ReplaceOrInsert(e)
	}
	q.next = slot + 1
}

// add adds an entry that was added to the file, if its slot was read.
func (q *dueQueue) add(e due) {
	if e.slot < q.next {
		q.entries.ReplaceOrInsert(e)
	}
}

// due yields the entries that are due, the earliest first, and removes them. The caller adds those that
// must stay again after the loop.
func (q *dueQueue) due(now time.Time) iter.Seq[due] {
	return func(yield func(due) bool) {
		for {
			e, ok := q.entries.Min()
			if !ok || e.at > nanosecond(now) {
				return
			}
			q.entries.DeleteMin()
			if !yield(e) {
				return
			}
		}
	}
}

// soonOf returns the soon of a tenant, read up to the slots of now.
func (t *txn) soonOf(tenant string, now time.Time) *soon {
	s := t.tally.soonOf(tenant)
	if s == nil {
		s = &soon{expiry: newDueQueue(), ends: newDueQueue()}
		t.tally.soon[tenant], t.tally.asked[tenant] = s, true
	}
	s.expiry.read(t.expiry, tenant, minuteOf(nanosecond(now)))
	s.ends.read(t.ends, tenant, secondOf(nanosecond(now)))
	return s
}

// expiredOf appends expired conversations of the tenant, swept or not, to gone until it has n. It moves due
// entries of conversations that have not expired to their new times, as the sweeper does.
func (t *txn) expiredOf(gone []*stored, tenant string, n int, now time.Time) []*stored {
	if len(gone) >= n {
		return gone
	}
	soon := t.soonOf(tenant, now)
	var again []due // entries to keep: if the operation is refused, they stay in the file
	for e := range soon.expiry.due(now) {
		key, _ := e.inner()
		s, err := t.at(tenant, key)
		switch {
		case err != nil: // The conversation was removed or is damaged.
		case s.record.Expired(now, s.session):
			gone, again = addTo(gone, s), append(again, e)
		case s.place.minute == e.slot:
			t.disarm(s)
			t.arm(s, nextLook(s, now))
		}
		if len(gone) >= n {
			break
		}
	}
	for _, e := range again {
		soon.expiry.add(e)
	}
	if len(gone) >= n {
		return gone
	}
	again = nil
	for e := range soon.ends.due(now) {
		if s, err := t.load(tenant, e.name, record.UnmarshalHead); err == nil && s != nil && s.session.Over(now) {
			gone, again = addTo(gone, s), append(again, e)
		}
		if len(gone) >= n {
			break
		}
	}
	for _, e := range again {
		soon.ends.add(e)
	}
	return gone
}

// over returns how many ids of a tenant, up to n, belong to ephemeral conversations that have ended and
// were not swept.
func (t *txn) over(tenant string, n int, now time.Time) int {
	soon := t.soonOf(tenant, now)
	found := map[string]due{} // by id, since an entry may have been removed and added again
	for e := range soon.ends.due(now) {
		if t.session(tenant, e.name).Over(now) {
			found[e.name] = e
		}
		if len(found) >= n {
			break
		}
	}
	for _, e := range found {
		soon.ends.add(e)
	}
	return len(found)
}

// dueOf yields a tenant's entries in expiry or ends from one slot to another, both included. It skips all
// entries of other tenants in a slot with one seek.
func dueOf(b *bolt.Bucket, tenant string, from, to uint32) iter.Seq[due] {
	return func(yield func(due) bool) {
		own := tenantKey(tenant)
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
				if e, ok := decodeDue(k, v); ok {
					e.tenant = tenant // one string for all entries
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
