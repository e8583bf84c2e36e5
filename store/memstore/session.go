package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// session is an id that is session memory, or was and has not been swept. One that nobody holds
// has a conversation. It never changes: another one is put in its place.
type session struct {
	id         string
	holders    int
	deleteTime time.Time // zero while there are holders
}

// state is what record decides by; the nil session is none.
func (m *session) state() record.Session {
	if m == nil {
		return record.Session{}
	}
	return record.Session{Held: m.holders > 0, DeleteTime: m.deleteTime}
}

// sessions finds session memory among all of a tenant's.
func sessions(all *btree.BTreeG[*session]) record.Sessions {
	return func(id string) record.Session {
		m, _ := all.Get(&session{id: id})
		return m.state()
	}
}

// session says what an id is as session memory.
func (t *tenant) session(id string) record.Session {
	if t == nil {
		return record.Session{}
	}
	return sessions(t.sessions)(id)
}

// Hold implements store.Store. DeleteAfter is for those that outlive the process.
func (s *Store) Hold(ctx context.Context, h *store.Hold) error {
	ids := record.IDs(h)
	err := s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[h.Tenant]
		if t == nil {
			t = newTenant(h.Tenant)
		}
		if t.memory(ids, now) > store.MaxHolds {
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

// memory is how many ids would be session memory with these.
func (t *tenant) memory(ids []string, now time.Time) int {
	n := t.sessions.Len()
	for _, id := range ids {
		if !t.session(id).Lasts(now) {
			n++
		}
	}
	t.byDeleteTime.Ascend(func(m *session) bool {
		over := m.state().Over(now)
		if over {
			n--
		}
		return over
	})
	return n
}

// hold gives an id one more holder. What is no more is removed, lest it come back.
func (s *Store) hold(t *tenant, id string, now time.Time) []store.Change {
	var changes []store.Change
	if e := t.byID[id]; e != nil && e.expired(now, t.session(id)) {
		changes = append(changes, s.end(t, e, now))
	}
	m := &session{id: id, holders: 1}
	if old, ok := t.sessions.Get(m); ok {
		m.holders += old.holders
	}
	s.remember(t, m)
	return changes
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, h *store.Hold) error {
	ids := record.IDs(h)
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

// release takes one holder from an id, if it has any.
func (s *Store) release(t *tenant, id string, now time.Time, after time.Duration) []store.Change {
	old, _ := t.sessions.Get(&session{id: id})
	if !old.state().Held {
		return nil
	}
	m := &session{id: id, holders: old.holders - 1}
	if m.holders > 0 {
		s.remember(t, m)
		return nil
	}
	e := t.byID[id]
	if e == nil { // There is nothing to delete later.
		t.forget(id)
		s.dropEmpty(t)
		return nil
	}
	m.deleteTime = now.Add(after)
	s.remember(t, m)
	if m.state().Over(now) {
		return []store.Change{s.end(t, e, now)}
	}
	return nil
}

// remember puts session memory in the place of what its id was before.
func (s *Store) remember(t *tenant, m *session) {
	s.tenants[t.name] = t
	if old, ok := t.sessions.ReplaceOrInsert(m); ok {
		t.byDeleteTime.Delete(old)
	}
	if m.holders == 0 {
		t.byDeleteTime.ReplaceOrInsert(m)
	}
	if e := t.byID[m.id]; e != nil {
		t.leave(e)
		t.enter(e)
	}
}

// forget makes an id like any other.
func (t *tenant) forget(id string) {
	if m, ok := t.sessions.Delete(&session{id: id}); ok {
		t.byDeleteTime.Delete(m)
	}
}
