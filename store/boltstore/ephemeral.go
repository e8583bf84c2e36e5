package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/fairqueue"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
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

// idWeight is the number of bytes that an id of a Hold or Release counts as in the limits of the
// writer. An id has few bytes but causes much work, and the queue and each transaction must be
// processed quickly.
const idWeight = 1 << 10

// applyToIDs makes the writer call apply with the ids of a hold.
func (s *Store) applyToIDs(ctx context.Context, h *store.Hold, apply func(t *txn, ids []string) error) error {
	ids := record.HoldIDs(h)
	size := len(ids) * idWeight
	for _, id := range ids {
		if n := len(h.Tenant) + len(id); n > layout.MaxNames {
			return fmt.Errorf("tenant and conversation id are %d bytes long, %d at most", n, layout.MaxNames)
		}
	}
	return s.do(ctx, h.Tenant, size, func(t *txn) error {
		return apply(t, ids)
	})
}

// beginUse makes the transaction with which a process begins to use the file: it releases the holds of the processes
// that had the file open before, and writes the entry of the journal. If the disk has no space for that, the store uses
// no new journal.
func (s *Store) beginUse() error {
	var t *txn
	var id int
	recorded := s.journal == nil
	err := s.db.Update(func(tx *bolt.Tx) error {
		recorded = recorded || boltfile.IsJournaled(tx)
		t, id = s.beginTxn(tx), tx.ID()
		t.dirty = !recorded
		t.releaseStale(len(s.tally.staleHolds))
		return t.finish()
	})
	switch {
	case err == nil, errors.Is(err, boltfile.ErrUnchanged):
		s.tally.apply(t)
		return nil
	case boltfile.IsFull(err) && boltfile.IsRolledBack(s.db, id):
		// The holds count as released, and Sweep writes the releases later.
		if !recorded {
			return s.dropJournal()
		}
		return nil
	}
	return fmt.Errorf("begin to use the file: %w", err)
}

// releaseStale releases the holds of ended processes if Open could not. If the disk still has no
// space, a later call tries again.
func (s *Store) releaseStale(ctx context.Context) error {
	for s.tally.staleHoldCount() > 0 {
		err := s.do(ctx, fairqueue.Upkeep, 0, func(t *txn) error {
			t.releaseStale(maxStep)
			return nil
		})
		if errors.Is(err, store.ErrNoSpace) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("release ephemeral conversations of ended processes: %w", err)
		}
	}
	return nil
}

// releaseStale releases at most the next n stale holds.
func (t *txn) releaseStale(n int) {
	keys := t.tally.staleHolds[t.released:]
	keys = keys[:min(n, len(keys))]
	t.mutations++
	t.released += len(keys)
	for _, key := range keys {
		entry, ok := layout.DecodeEphemeral([]byte(key), t.sessions.Get([]byte(key)))
		if !ok {
			continue
		}
		tenant, id, _ := layout.CutTenant([]byte(key))
		if released, left := t.tally.epoch.ReleaseStale(entry); left {
			t.putReleased(tenant, string(id), released)
		}
	}
}

// readState returns the state of an id. sessions is the bucket of that name.
func readState(sessions *bolt.Bucket, o layout.Epoch, tenant, id string) record.Ephemeral {
	key := layout.IDKey(tenant, id)
	return o.StateOf(key, sessions.Get(key))
}

// readStates returns a function that returns the states of the ids of a tenant. mayHaveEphemeral is
// the result of tally.mayHaveEphemeral.
func readStates(tx *bolt.Tx, o layout.Epoch, mayHaveEphemeral bool, tenant string) record.EphemeralStates {
	if !mayHaveEphemeral {
		return nil
	}
	sessions := tx.Bucket([]byte(layout.SessionsBucket))
	return func(id string) record.Ephemeral { return readState(sessions, o, tenant, id) }
}

// hold adds a holder to each of the ids, or to none of them. It first removes expired conversations
// with these ids, since a hold would make them live again.
func (t *txn) hold(tenant string, ids []string, after time.Duration, now time.Time) error {
	var expired []*stored
	more := t.ephemeralCount(tenant) - store.MaxHolds
	for _, id := range ids {
		if !t.ephemeralState(tenant, id).IsActive(now) {
			more++
		}
		if s, err := t.load(tenant, id, head); err == nil && s != nil && s.live(now) == nil {
			expired = append(expired, s)
		}
	}
	if more > 0 && t.countEnded(tenant, more, now) < more {
		return store.ErrTooManyHolds
	}
	for _, s := range expired {
		t.end(s, now)
	}
	for _, id := range ids {
		t.putEphemeral(tenant, id, t.tally.epoch.NewHold(after))
		t.setHolders(tenant, id, t.holdersOf(tenant, id)+1)
	}
	return nil
}

// release removes a holder from an id, if it has any. A damaged entry stays as it is.
func (t *txn) release(tenant, id string, after time.Duration, now time.Time) {
	n := t.holdersOf(tenant, id)
	if n == 0 {
		return
	}
	t.setHolders(tenant, id, n-1)
	key := layout.IDKey(tenant, id)
	entry, ok := layout.DecodeEphemeral(key, t.sessions.Get(key))
	if n > 1 || !ok {
		return
	}
	if after > 0 {
		t.putReleased(tenant, id, entry.Release(now, after))
	} else {
		t.endEphemeral(tenant, id, now)
	}
}

// putReleased writes that an id has no holder. If the id has no conversation, there is nothing to
// delete later, and its entry is removed.
func (t *txn) putReleased(tenant, id string, released layout.EphemeralEntry) {
	if t.ids.Get(layout.IDKey(tenant, id)) == nil {
		t.deleteEphemeral(tenant, id)
	} else {
		t.putEphemeral(tenant, id, released)
	}
}

// endEphemeral removes an id from sessions, and its conversation if it exists and can be read.
func (t *txn) endEphemeral(tenant, id string, now time.Time) {
	s, err := t.load(tenant, id, head)
	t.deleteEphemeral(tenant, id)
	if err != nil || s == nil {
		return
	}
	deleted := s.record.RemovalChange(tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, now)
	deleted.EphemeralEnded = true
	t.remove(s)
	t.changes = append(t.changes, deleted)
}

// sweepEphemeral ends the ephemeral conversation of an entry in ends.
func (t *txn) sweepEphemeral(e layout.DueEntry, now time.Time) {
	if e.At > layout.Nanosecond(now) {
		return // The clock was set back.
	}
	key := layout.IDKey(e.Tenant, e.Name)
	if entry, ok := layout.DecodeEphemeral(key, t.sessions.Get(key)); ok && entry.DeleteAt == e.At {
		t.endEphemeral(e.Tenant, e.Name, now)
		return
	}
	// Another operation changed the id first, or the entry is left over from damage.
	t.del(t.ends, layout.DueKey(e.Slot, e.Tenant, e.Name))
}

// putEphemeral writes the state of an id in sessions and ends.
func (t *txn) putEphemeral(tenant, id string, e layout.EphemeralEntry) {
	t.deleteEphemeral(tenant, id)
	key := layout.IDKey(tenant, id)
	t.put(t.sessions, key, e.Encode(key))
	t.ephemeralCounts[tenant] = t.ephemeralCount(tenant) + 1
	if e.Held() {
		return
	}
	endEntry := layout.EndKey(e.DeleteAt, tenant, id)
	t.put(t.ends, endEntry, layout.EncodeDue(endEntry, e.DeleteAt))
	if s := t.tally.dueIndex(tenant); s != nil {
		s.ends.add(layout.DueEntry{Slot: layout.SecondOf(e.DeleteAt), Tenant: tenant, Name: id, At: e.DeleteAt})
	}
	if p, ok, err := t.place(tenant, id); ok && err == nil {
		t.markEvictable(tenant, p.Key)
	}
}

// deleteEphemeral removes an id from sessions and ends, if it is there.
func (t *txn) deleteEphemeral(tenant, id string) {
	key := layout.IDKey(tenant, id)
	value := t.sessions.Get(key)
	if value == nil {
		return
	}
	if entry, ok := layout.DecodeEphemeral(key, value); ok && !entry.Held() {
		t.del(t.ends, layout.EndKey(entry.DeleteAt, tenant, id))
	}
	t.del(t.sessions, key)
	t.ephemeralCounts[tenant] = t.ephemeralCount(tenant) - 1
}

// ephemeralState returns the state of an id within the transaction.
func (t *txn) ephemeralState(tenant, id string) record.Ephemeral {
	return readState(t.sessions, t.tally.epoch, tenant, id)
}

// ephemeralCount returns the number of ids of a tenant in sessions within the transaction.
func (t *txn) ephemeralCount(tenant string) int {
	if n, ok := t.ephemeralCounts[tenant]; ok {
		return n
	}
	return t.tally.ephemeralCounts[tenant] // Without its lock: only the writer changes it.
}

// holdersOf returns the number of holders of an id within the transaction.
func (t *txn) holdersOf(tenant, id string) int {
	key := layout.IDKey(tenant, id)
	if n, ok := t.holders[string(key)]; ok {
		return n
	}
	return t.tally.holders[string(key)]
}

func (t *txn) setHolders(tenant, id string, n int) {
	t.mutations++
	t.holders[string(layout.IDKey(tenant, id))] = n
}
