package memstore

import (
	"bytes"
	"cmp"
	"time"

	"github.com/google/btree"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// tenant is the conversations and the session memory of one tenant. The nil tenant has none.
type tenant struct {
	name         string
	byID         map[string]*entry
	byCreateTime *btree.BTreeG[*entry]
	evictable    *btree.BTreeG[*entry] // by create time, without those that a turn or a hold keeps
	byExpireTime *btree.BTreeG[*entry] // without those that a turn or session memory keeps

	sessions     *btree.BTreeG[*session] // by id
	byDeleteTime *btree.BTreeG[*session] // without those that are held: these have conversations
}

// entry is a conversation. It never changes: a write puts another one in its place.
type entry struct {
	key, value        []byte
	appended, expires time.Time
	turn              string       // that runs; empty when none does
	gone              store.Change // what to say when it is no more
}

// newEntry encodes what a write made of a conversation; the key is the caller's to set.
func newEntry(tenantName string, r *record.Record) (*entry, error) {
	value, err := r.Marshal()
	if err != nil {
		return nil, err
	}
	c := r.Conversation()
	return &entry{
		value: value, appended: c.GetLastAppendTime().AsTime(), expires: r.ExpireTime(), turn: c.GetActiveTurnId(),
		gone: r.Gone(tenantName, parleyv1.ChangeKind_CHANGE_KIND_UNSPECIFIED, time.Time{}),
	}, nil
}

const degree = 32 // of the indexes

func newTenant(name string) *tenant {
	byKey := func(a, b *entry) bool { return bytes.Compare(a.key, b.key) < 0 }
	return &tenant{
		name:         name,
		byID:         make(map[string]*entry),
		byCreateTime: btree.NewG(degree, byKey),
		evictable:    btree.NewG(degree, byKey),
		byExpireTime: btree.NewG(degree, func(a, b *entry) bool {
			return cmp.Or(a.expires.Compare(b.expires), bytes.Compare(a.key, b.key)) < 0
		}),
		sessions: btree.NewG(degree, func(a, b *session) bool { return a.id < b.id }),
		byDeleteTime: btree.NewG(degree, func(a, b *session) bool {
			return cmp.Or(a.deleteTime.Compare(b.deleteTime), cmp.Compare(a.id, b.id)) < 0
		}),
	}
}

// find returns the conversation of that id, nil when there is none.
func (t *tenant) find(id string) *entry {
	if t == nil {
		return nil
	}
	return t.byID[id]
}

// expired reports whether the conversation is no more, although it has not been swept; s is
// what its id is as session memory.
func (e *entry) expired(now time.Time, s record.Session) bool {
	return s.Expired(now, e.expires, e.turn != "")
}

// live decodes the conversation; nil when it is nil or has expired.
func (e *entry) live(now time.Time, s record.Session, decode func([]byte) (*record.Record, error)) (*record.Record, error) {
	if e == nil || e.expired(now, s) {
		return nil, nil //nolint:nilnil // there is none
	}
	return decode(e.value)
}

// victim is the conversation that must go before one of this id can be made; nil when none
// must.
func (t *tenant) victim(id string, limit int, now time.Time) (*entry, error) {
	if e := t.byID[id]; e != nil {
		return e, nil // It is no more, else no other could be made.
	}
	if limit == 0 || len(t.byID) < limit {
		return nil, nil //nolint:nilnil // there is room
	}
	if e := t.expired(now); e != nil {
		return e, nil
	}
	if oldest, ok := t.evictable.Min(); ok {
		return oldest, nil
	}
	return nil, store.ErrFull
}

// expired returns a conversation that is no more, although it has not been swept; nil when
// there is none.
func (t *tenant) expired(now time.Time) *entry {
	if e, ok := t.byExpireTime.Min(); ok && e.expired(now, record.Session{}) {
		return e
	}
	if m, ok := t.byDeleteTime.Min(); ok && m.state().Over(now) {
		return t.byID[m.id]
	}
	return nil
}

// enter adds an entry to the indexes of those that may come to an end.
func (t *tenant) enter(e *entry) {
	s := t.session(e.gone.ConversationID)
	if e.turn == "" && !s.Held {
		t.evictable.ReplaceOrInsert(e)
	}
	if e.turn == "" && s.IsZero() {
		t.byExpireTime.ReplaceOrInsert(e)
	}
}

// leave takes an entry out of them.
func (t *tenant) leave(e *entry) {
	t.evictable.Delete(e)
	t.byExpireTime.Delete(e)
}

// insert adds an entry to the indexes and counts.
func (s *Store) insert(t *tenant, e *entry) {
	s.tenants[t.name] = t
	t.byID[e.gone.ConversationID] = e
	t.byCreateTime.ReplaceOrInsert(e)
	t.enter(e)
	s.count(e, 1)
}

// takeOut takes an entry out of the indexes and counts.
func (s *Store) takeOut(t *tenant, e *entry) {
	delete(t.byID, e.gone.ConversationID)
	t.byCreateTime.Delete(e)
	t.leave(e)
	s.count(e, -1)
}

// remove removes a conversation. Its id is like any other then, unless somebody holds it.
func (s *Store) remove(t *tenant, e *entry) {
	s.takeOut(t, e)
	if !t.session(e.gone.ConversationID).Held {
		t.forget(e.gone.ConversationID)
	}
	s.dropEmpty(t)
}

// dropEmpty forgets a tenant that has nothing.
func (s *Store) dropEmpty(t *tenant) {
	if len(t.byID) == 0 && t.sessions.Len() == 0 {
		delete(s.tenants, t.name)
	}
}

func (s *Store) count(e *entry, sign int64) {
	s.stats.Conversations += sign
	s.stats.Messages += sign * int64(e.gone.Count)
	s.stats.Bytes += sign * int64(len(e.value))
}

// end removes a conversation that is no more or makes room, and says so.
func (s *Store) end(t *tenant, e *entry, now time.Time) store.Change {
	gone, memory := e.gone, t.session(e.gone.ConversationID)
	gone.Time = now
	switch {
	case memory.Over(now):
		gone.Kind, gone.SessionEnded = parleyv1.ChangeKind_CHANGE_KIND_DELETED, true
	case e.expired(now, memory):
		gone.Kind = parleyv1.ChangeKind_CHANGE_KIND_EXPIRED
		s.stats.Expired++
	default:
		gone.Kind = parleyv1.ChangeKind_CHANGE_KIND_EVICTED
		s.stats.Evicted++
	}
	s.remove(t, e)
	return gone
}
