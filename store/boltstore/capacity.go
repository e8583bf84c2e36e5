package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
func (t *txn) victimsForCreate(tenant string, again *stored, now time.Time) ([]*stored, error) {
	var gone []*stored
	if again != nil {
		gone = append(gone, again)
	}
	limit := int64(t.options.MaxConversations)
	excess := t.countsOf(tenant).conversations + 1 - limit
	if limit == 0 || excess <= int64(len(gone)) {
		return gone, nil
	}
	excess = min(excess, maxStep)
	if gone = t.appendVictims(gone, tenant, int(excess), now); len(gone) < int(excess) {
		return nil, store.ErrFull
	}
	return gone, nil
}

// victims adds to gone until it has n conversations or there are no more that may go.
func (t *txn) appendVictims(gone []*stored, tenant string, n int, now time.Time) []*stored {
	gone = t.appendExpired(gone, tenant, n, now)
	// Each one that is passed over has a running turn, or is held, or has damage that somebody
	// should see. There may be very many, so the next time begins behind them.
	ahead := true
	may := func(s *stored) bool {
		may := !s.record.Running() && !s.ephemeral.Held
		ahead = ahead && !may
		return may
	}
	prefix, passed := tenantKey(tenant), t.evictionStart(tenant)
	c := t.conversations.Cursor()
	for k, _ := c.Seek(conversationKey(tenant, passed)); len(gone) < n && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if rest := k[len(prefix):]; len(rest) == record.KeySize {
			if ahead {
				t.evictFrom[tenant] = innerKey(rest)
			}
			gone = t.appendVictim(gone, tenant, innerKey(rest), may)
		}
	}
	return gone
}

// passedOver is a conversation of a tenant ahead of which none may be evicted.
func (t *txn) evictionStart(tenant string) innerKey {
	if key, ok := t.evictFrom[tenant]; ok {
		return key
	}
	return t.tally.evictFrom[tenant]
}

// mayGo notes that a conversation may be evicted from now on.
func (t *txn) markEvictable(tenant string, key innerKey) {
	if passed := t.evictionStart(tenant); bytes.Compare(key[:], passed[:]) < 0 {
		t.evictFrom[tenant] = key
	}
}

// victim adds one conversation, if it may go and is not there yet.
func (t *txn) appendVictim(gone []*stored, tenant string, key innerKey, may func(*stored) bool) []*stored {
	s, err := t.loadAt(tenant, key)
	if err != nil || !may(s) {
		return gone
	}
	return appendUnique(gone, s)
}

// addTo adds a conversation of the same tenant, if it is not there yet.
func appendUnique(gone []*stored, s *stored) []*stored {
	if slices.ContainsFunc(gone, func(g *stored) bool { return g.place.key == s.place.key }) {
		return gone
	}
	return append(gone, s)
}

// shrink removes the oldest conversations of tenants that are above their capacity, which
// they are when it was lowered; left of them at most.
func (s *Store) evictExcess(ctx context.Context, left int) (more bool, err error) {
	limit := int64(s.options.MaxConversations)
	if limit == 0 {
		return false, nil
	}
	var damage error // Of a tenant, which does not keep the others above their capacity.
	for _, tenant := range s.tally.above(limit) {
		for more = true; more; {
			step := min(left, maxStep)
			if step <= 0 {
				return true, damage
			}
			evicted := 0
			err := s.do(ctx, 0, func(t *txn) error {
				now := s.options.Now()
				excess := int(t.countsOf(tenant).conversations - limit)
				gone := t.appendVictims(nil, tenant, min(excess, step), now)
				for _, g := range gone {
					t.end(g, now)
				}
				evicted, more = len(gone), len(gone) == step && excess > step
				return nil
			})
			if errors.Is(err, store.ErrCorrupt) {
				damage = cmp.Or(damage, err)
				break
			}
			if err != nil {
				return true, err
			}
			left -= evicted
		}
	}
	return false, damage
}
