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

// tenant is the conversations of one tenant. The nil tenant has none.
type tenant struct {
	name         string
	byID         map[string]*entry
	byCreateTime *btree.BTreeG[*entry]
	byExpireTime *btree.BTreeG[*entry] // without those that a running turn keeps
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
	return &tenant{
		name:         name,
		byID:         make(map[string]*entry),
		byCreateTime: btree.NewG(degree, func(a, b *entry) bool { return bytes.Compare(a.key, b.key) < 0 }),
		byExpireTime: btree.NewG(degree, func(a, b *entry) bool {
			return cmp.Or(a.expires.Compare(b.expires), bytes.Compare(a.key, b.key)) < 0
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

// expired reports whether the conversation is no more, although it has not been swept.
func (e *entry) expired(now time.Time) bool { return e.turn == "" && !now.Before(e.expires) }

// live decodes the conversation; nil when it is nil or has expired.
func (e *entry) live(now time.Time) (*record.Record, error) {
	if e == nil || e.expired(now) {
		return nil, nil //nolint:nilnil // there is none
	}
	return record.Unmarshal(e.value)
}

// victim is the conversation that must go before one of this id can be made, nil when none
// must, and what is to be said of its end.
func (t *tenant) victim(id string, limit int, now time.Time) (*entry, parleyv1.ChangeKind, error) {
	if e := t.byID[id]; e != nil {
		// It has expired, else no other could be made.
		return e, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, nil
	}
	if limit == 0 || len(t.byID) < limit {
		return nil, 0, nil
	}
	if e, ok := t.byExpireTime.Min(); ok && e.expired(now) {
		return e, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, nil
	}
	var oldest *entry
	t.byCreateTime.Ascend(func(e *entry) bool {
		if e.turn == "" {
			oldest = e
		}
		return oldest == nil
	})
	if oldest == nil {
		return nil, 0, store.ErrFull
	}
	return oldest, parleyv1.ChangeKind_CHANGE_KIND_EVICTED, nil
}

// insert adds an entry to the indexes and counts.
func (s *Store) insert(t *tenant, e *entry) {
	s.tenants[t.name] = t
	t.byID[e.gone.ConversationID] = e
	t.byCreateTime.ReplaceOrInsert(e)
	if e.turn == "" {
		t.byExpireTime.ReplaceOrInsert(e)
	}
	s.count(e, 1)
}

// remove takes an entry out of the indexes and counts.
func (s *Store) remove(t *tenant, e *entry) {
	delete(t.byID, e.gone.ConversationID)
	t.byCreateTime.Delete(e)
	t.byExpireTime.Delete(e)
	if len(t.byID) == 0 {
		delete(s.tenants, t.name)
	}
	s.count(e, -1)
}

func (s *Store) count(e *entry, sign int64) {
	s.stats.Conversations += sign
	s.stats.Messages += sign * int64(e.gone.Count)
	s.stats.Bytes += sign * int64(len(e.value))
}

// end removes a conversation and says so.
func (s *Store) end(t *tenant, e *entry, kind parleyv1.ChangeKind, now time.Time) store.Change {
	s.remove(t, e)
	switch kind {
	case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		s.stats.Expired++
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		s.stats.Evicted++
	default:
	}
	gone := e.gone
	gone.Kind, gone.Time = kind, now
	return gone
}
