package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// ephemeralID is an id of an ephemeral conversation, or of one whose delete time has passed and
// that has not been swept. An id without holders always has a conversation. An ephemeralID never
// changes: it is replaced by another one.
type ephemeralID struct {
	id         string
	holders    int
	deleteTime time.Time // zero while there are holders
}

// state returns the input for the decisions of package record. A nil ephemeralID is the zero state:
// an ordinary id.
func (m *ephemeralID) state() record.Ephemeral {
	if m == nil {
		return record.Ephemeral{}
	}
	return record.Ephemeral{Held: m.holders > 0, DeleteTime: m.deleteTime}
}

// ephemeralStates returns a function that looks an id up among the ephemeral ids of a tenant.
func ephemeralStates(all *btree.BTreeG[*ephemeralID]) record.EphemeralStates {
	return func(id string) record.Ephemeral {
		m, _ := all.Get(&ephemeralID{id: id})
		return m.state()
	}
}

// ephemeralState returns the state of an id; zero if it is an ordinary id.
func (t *tenant) ephemeralState(id string) record.Ephemeral {
	if t == nil {
		return record.Ephemeral{}
	}
	return ephemeralStates(t.ephemeral)(id)
}

// Hold implements store.Store. It ignores DeleteAfter, because nothing outlives the process.
func (s *Store) Hold(ctx context.Context, h *store.Hold) error {
	ids := record.HoldIDs(h)
	err := s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[h.Tenant]
		if t == nil {
			t = newTenant(h.Tenant)
		}
		if t.countEphemeral(ids, now) > store.MaxHolds {
			return nil, store.ErrTooManyHolds
		}
		var changes []store.Change
		for _, id := range ids {
			changes = append(changes, s.hold(t, id, now)...)
		}
		return changes, nil
	})
	if err != nil {
		return fmt.Errorf("hold %d conversations: %w", len(ids), err)
	}
	return nil
}

// countEphemeral returns how many ids would be ephemeral if ids were added.
func (t *tenant) countEphemeral(ids []string, now time.Time) int {
	n := t.ephemeral.Len()
	for _, id := range ids {
		if !t.ephemeralState(id).IsActive(now) {
			n++
		}
	}
	t.byDeleteTime.Ascend(func(m *ephemeralID) bool {
		over := m.state().HasEnded(now)
		if over {
			n--
		}
		return over
	})
	return n
}

// hold adds a holder to an id. It removes an expired conversation, which would otherwise become
// visible again.
func (s *Store) hold(t *tenant, id string, now time.Time) []store.Change {
	var changes []store.Change
	if e := t.byID[id]; e != nil && e.expired(now, t.ephemeralState(id)) {
		changes = append(changes, s.removeAndReport(t, e, now))
	}
	m := &ephemeralID{id: id, holders: 1}
	if old, ok := t.ephemeral.Get(m); ok {
		m.holders += old.holders
	}
	s.putEphemeral(t, m)
	return changes
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, h *store.Hold) error {
	ids := record.HoldIDs(h)
	err := s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[h.Tenant]
		if t == nil {
			return nil, nil
		}
		var changes []store.Change
		for _, id := range ids {
			changes = append(changes, s.release(t, id, now, h.DeleteAfter)...)
		}
		return changes, nil
	})
	if err != nil {
		return fmt.Errorf("release %d conversations: %w", len(ids), err)
	}
	return nil
}

// release removes a holder from an id, if the id has one.
func (s *Store) release(t *tenant, id string, now time.Time, after time.Duration) []store.Change {
	old, _ := t.ephemeral.Get(&ephemeralID{id: id})
	if !old.state().Held {
		return nil
	}
	m := &ephemeralID{id: id, holders: old.holders - 1}
	if m.holders > 0 {
		s.putEphemeral(t, m)
		return nil
	}
	e := t.byID[id]
	if e == nil { // Without a conversation there is nothing to delete later.
		t.deleteEphemeral(id)
		s.deleteIfEmpty(t)
		return nil
	}
	m.deleteTime = now.Add(after)
	s.putEphemeral(t, m)
	if m.state().HasEnded(now) {
		return []store.Change{s.removeAndReport(t, e, now)}
	}
	return nil
}

// putEphemeral replaces the ephemeral state of an id.
func (s *Store) putEphemeral(t *tenant, m *ephemeralID) {
	s.tenants[t.name] = t
	if old, ok := t.ephemeral.ReplaceOrInsert(m); ok {
		t.byDeleteTime.Delete(old)
	}
	if m.holders == 0 {
		t.byDeleteTime.ReplaceOrInsert(m)
	}
	if e := t.byID[m.id]; e != nil {
		t.unindexRemovable(e)
		t.indexRemovable(e)
	}
}

// deleteEphemeral makes an id an ordinary one.
func (t *tenant) deleteEphemeral(id string) {
	if m, ok := t.ephemeral.Delete(&ephemeralID{id: id}); ok {
		t.byDeleteTime.Delete(m)
	}
}
