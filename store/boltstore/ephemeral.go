package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Hold implements store.Store.
func (s *Store) Hold(ctx context.Context, h *store.Hold) error {
	err := s.applyToIDs(ctx, h, func(t *txn, ids []string) error {
		return t.hold(h.Tenant, ids, h.DeleteAfter, s.options.Now())
	})
	if err != nil {
		return fmt.Errorf("hold %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, h *store.Hold) error {
	err := s.applyToIDs(ctx, h, func(t *txn, ids []string) error {
		now := s.options.Now()
		for _, id := range ids {
			t.release(h.Tenant, id, h.DeleteAfter, now)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("release %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

// idWeight is what an id of a Hold or Release counts as in bytes: it is little to hold but much to
// do, and what waits, and what goes into one transaction, must be done within a moment.
const idWeight = 1 << 10

// remember has the writer apply something to the ids of a hold.
func (s *Store) applyToIDs(ctx context.Context, h *store.Hold, apply func(t *txn, ids []string) error) error {
	ids := record.IDs(h)
	size := len(ids) * idWeight
	for _, id := range ids {
		if n := len(h.Tenant) + len(id); n > maxNames {
			return fmt.Errorf("tenant and conversation id are %d bytes long, %d at most", n, maxNames)
		}
	}
	return s.do(ctx, size, func(t *txn) error {
		return apply(t, ids)
	})
}

// beginAnew releases what the processes held that had the file before.
func (s *Store) releaseStaleAtOpen() error {
	var t *txn
	var id int
	err := s.db.Update(func(tx *bolt.Tx) error {
		t, id = s.beginTxn(tx), tx.ID()
		t.releaseStale(len(s.tally.staleHolds))
		return t.finish()
	})
	switch {
	case err == nil, errors.Is(err, errUnchanged):
		s.tally.apply(t)
		return nil
	case isFull(err) && isRolledBack(s.db, id):
		return nil // It counts as released, and Sweep tries again.
	}
	return fmt.Errorf("release session memory: %w", err)
}

// releaseLeft releases what the processes held that had the file before, if Open could
// not. Where there is still no space it is left for later.
func (s *Store) releaseStale(ctx context.Context) error {
	for s.tally.staleHoldCount() > 0 {
		err := s.do(ctx, 0, func(t *txn) error {
			t.releaseStale(maxStep)
			return nil
		})
		if errors.Is(err, store.ErrNoSpace) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("release session memory: %w", err)
		}
	}
	return nil
}

// releaseLeft releases the next ids that are left behind, n at most.
func (t *txn) releaseStale(n int) {
	keys := t.tally.staleHolds[t.released:]
	keys = keys[:min(n, len(keys))]
	t.mutations++
	t.released += len(keys)
	for _, key := range keys {
		m, ok := decodeEphemeral([]byte(key), t.sessions.Get([]byte(key)))
		if !ok {
			continue
		}
		tenant, id, _ := cutTenant([]byte(key))
		if released, left := t.tally.epoch.releaseStale(m); left {
			t.putReleased(tenant, string(id), released)
		}
	}
}

// readSession reads what an id is as session memory. Where its entry is damaged, it is none.
func (o epoch) readState(sessions *bolt.Bucket, tenant, id string) record.Session {
	key := idKey(tenant, id)
	if m, ok := decodeEphemeral(key, sessions.Get(key)); ok {
		return o.state(m)
	}
	return record.Session{}
}

// readSessions reads for the ids of a tenant; some is what tally.someSessions said.
func (o epoch) readStates(tx *bolt.Tx, some bool, tenant string) record.Sessions {
	if !some {
		return nil
	}
	sessions := tx.Bucket([]byte(sessionsBucket))
	return func(id string) record.Session { return o.readState(sessions, tenant, id) }
}

// hold gives each of the ids one more holder, or none of them. What is no more is removed,
// lest it come back.
func (t *txn) hold(tenant string, ids []string, after time.Duration, now time.Time) error {
	var gone []*stored
	more := t.ephemeralCount(tenant) - store.MaxHolds
	for _, id := range ids {
		if !t.ephemeralState(tenant, id).Lasts(now) {
			more++
		}
		if s, err := t.load(tenant, id, record.UnmarshalHead); err == nil && s != nil && s.live(now) == nil {
			gone = append(gone, s)
		}
	}
	if more > 0 && t.countEnded(tenant, more, now) < more {
		return store.ErrTooManyHolds
	}
	for _, s := range gone {
		t.end(s, now)
	}
	for _, id := range ids {
		t.putEphemeral(tenant, id, t.tally.epoch.newHold(after))
		t.setHolders(tenant, id, t.holdersOf(tenant, id)+1)
	}
	return nil
}

// release takes one holder from an id, if it has any. A damaged entry stays as it is.
func (t *txn) release(tenant, id string, after time.Duration, now time.Time) {
	n := t.holdersOf(tenant, id)
	if n == 0 {
		return
	}
	t.setHolders(tenant, id, n-1)
	key := idKey(tenant, id)
	m, ok := decodeEphemeral(key, t.sessions.Get(key))
	if n > 1 || !ok {
		return
	}
	if after > 0 {
		t.putReleased(tenant, id, m.release(now, after))
	} else {
		t.endEphemeral(tenant, id, now)
	}
}

// letGo writes that nobody holds an id any more. Without a conversation there is nothing to
// delete later.
func (t *txn) putReleased(tenant, id string, released ephemeralEntry) {
	if t.ids.Get(idKey(tenant, id)) == nil {
		t.deleteEphemeral(tenant, id)
	} else {
		t.putEphemeral(tenant, id, released)
	}
}

// endSession ends session memory whose time is over, and removes its conversation, if it has
// one that can be read.
func (t *txn) endEphemeral(tenant, id string, now time.Time) {
	s, err := t.load(tenant, id, record.UnmarshalHead)
	t.deleteEphemeral(tenant, id)
	if err != nil || s == nil {
		return
	}
	gone := s.record.Gone(tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, now)
	gone.SessionEnded = true
	t.remove(s)
	t.changes = append(t.changes, gone)
}

// sweepEnd ends the session memory of an entry of ends.
func (t *txn) sweepEphemeral(e dueEntry, now time.Time) {
	if e.at > nanosecond(now) {
		return // The clock was set back.
	}
	key := idKey(e.tenant, e.name)
	if m, ok := decodeEphemeral(key, t.sessions.Get(key)); ok && m.deleteAt == e.at {
		t.endEphemeral(e.tenant, e.name, now)
		return
	}
	// Something else was faster, or the entry belongs to nothing: damage.
	t.del(t.ends, dueKey(e.slot, e.tenant, e.name))
}

// putSession writes what an id is as session memory from now on.
func (t *txn) putEphemeral(tenant, id string, m ephemeralEntry) {
	t.deleteEphemeral(tenant, id)
	key := idKey(tenant, id)
	t.put(t.sessions, key, m.encode(key))
	t.ephemeralCounts[tenant] = t.ephemeralCount(tenant) + 1
	if m.held() {
		return
	}
	entry := endKey(m.deleteAt, tenant, id)
	t.put(t.ends, entry, encodeDue(entry, m.deleteAt))
	if s := t.tally.dueIndex(tenant); s != nil {
		s.ends.add(dueEntry{slot: secondOf(m.deleteAt), tenant: tenant, name: id, at: m.deleteAt})
	}
	if p, err := decodePlace(key, t.ids.Get(key)); err == nil {
		t.markEvictable(tenant, p.key)
	}
}

// dropSession makes an id like any other.
func (t *txn) deleteEphemeral(tenant, id string) {
	key := idKey(tenant, id)
	value := t.sessions.Get(key)
	if value == nil {
		return
	}
	if m, ok := decodeEphemeral(key, value); ok && !m.held() {
		t.del(t.ends, endKey(m.deleteAt, tenant, id))
	}
	t.del(t.sessions, key)
	t.ephemeralCounts[tenant] = t.ephemeralCount(tenant) - 1
}

// session says what an id is as session memory within the transaction.
func (t *txn) ephemeralState(tenant, id string) record.Session {
	return t.tally.epoch.readState(t.sessions, tenant, id)
}

// remembered is how many ids of a tenant sessions has within the transaction.
func (t *txn) ephemeralCount(tenant string) int {
	if n, ok := t.ephemeralCounts[tenant]; ok {
		return n
	}
	return t.tally.ephemeralCounts[tenant] // Without its lock: only the writer changes it.
}

// holdersOf is how many hold an id within the transaction.
func (t *txn) holdersOf(tenant, id string) int {
	key := idKey(tenant, id)
	if n, ok := t.holders[string(key)]; ok {
		return n
	}
	return t.tally.holders[string(key)]
}

func (t *txn) setHolders(tenant, id string, n int) {
	t.mutations++
	t.holders[string(idKey(tenant, id))] = n
}
