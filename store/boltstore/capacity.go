package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// maxStep is how many conversations one operation removes, and how many entries it looks at
// to find them: a longer transaction would keep all other writes waiting.
const maxStep = 256

// makeRoom says which conversations must go so that the tenant can have one more: the
// expired one whose id is taken again, then others that have expired, then the oldest. A
// tenant that is far above a capacity that was lowered is left to Sweep.
func (t *txn) makeRoom(tenant string, again *stored, now time.Time) ([]*stored, error) {
	var gone []*stored
	if again != nil {
		gone = append(gone, again)
	}
	limit := int64(t.options.MaxConversations)
	excess := t.counted(tenant).conversations + 1 - limit
	if limit == 0 || excess <= int64(len(gone)) {
		return gone, nil
	}
	excess = min(excess, maxStep)
	if gone = t.victims(gone, tenant, int(excess), now); len(gone) < int(excess) {
		return nil, store.ErrFull
	}
	return gone, nil
}

// victims adds to gone until it has n conversations or there are no more that may go.
func (t *txn) victims(gone []*stored, tenant string, n int, now time.Time) []*stored {
	gone = t.expiredOf(gone, tenant, n, now)
	prefix := tenantKey(tenant)
	c := t.conversations.Cursor()
	// Each one that is passed over has a running turn, or damage that somebody should see.
	for k, _ := c.Seek(prefix); len(gone) < n && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if rest := k[len(prefix):]; len(rest) == record.KeySize {
			gone = t.victim(gone, tenant, inner(rest), func(r *record.Record) bool { return !r.Running() })
		}
	}
	return gone
}

// expiredOf adds conversations of the tenant that have expired, as far as they are found
// among its first entries that are due. Those of other tenants are leapt over, a minute's at
// once, and do not count: what goes must not depend on them.
func (t *txn) expiredOf(gone []*stored, tenant string, n int, now time.Time) []*stored {
	ns, own := nanosecond(now), tenantKey(tenant)
	c := t.expiry.Cursor()
	k, v := c.First()
	for looks := 0; looks < maxDueLooks && len(gone) < n && k != nil; {
		if len(k) < 4 {
			k, v = c.Next() // Damage.
			continue
		}
		minute := binary.BigEndian.Uint32(k)
		if minute > minuteOf(ns) {
			break
		}
		prefix := slices.Concat(k[:4], own)
		switch {
		case bytes.HasPrefix(k, prefix):
			if e, ok := decodeDue(k, v); ok && e.at <= ns {
				gone = t.victim(gone, tenant, e.key, func(r *record.Record) bool { return r.Expired(now) })
			}
			k, v = c.Next()
			looks++
		case bytes.Compare(k, prefix) < 0:
			k, v = c.Seek(prefix)
		default:
			k, v = c.Seek(binary.BigEndian.AppendUint32(nil, minute+1))
		}
	}
	return gone
}

// victim adds one conversation, if it may go and is not there yet.
func (t *txn) victim(gone []*stored, tenant string, key inner, may func(*record.Record) bool) []*stored {
	s, err := t.at(tenant, key)
	if err != nil || !may(s.record) || slices.ContainsFunc(gone, func(g *stored) bool { return g.place.key == key }) {
		return gone
	}
	return append(gone, s)
}

// shrink removes the oldest conversations of tenants that are above their capacity, which
// they are when it was lowered; left of them at most.
func (s *Store) shrink(ctx context.Context, left int) (more bool, err error) {
	limit := int64(s.options.MaxConversations)
	if limit == 0 {
		return false, nil
	}
	for _, tenant := range s.tally.above(limit) {
		for more = true; more; {
			step := min(left, maxStep)
			if step <= 0 {
				return true, nil
			}
			evicted := 0
			err := s.writer.do(ctx, 0, func(t *txn) error {
				now := s.options.Now()
				excess := int(t.counted(tenant).conversations - limit)
				gone := t.victims(nil, tenant, min(excess, step), now)
				for _, g := range gone {
					t.end(g, now)
				}
				evicted, more = len(gone), len(gone) == step && excess > step
				return nil
			})
			if err != nil {
				return true, err
			}
			left -= evicted
		}
	}
	return false, nil
}
