package memstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	snapshot, err := s.read(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", r.ConversationID, err)
	}
	return snapshot, nil
}

func (s *Store) read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	e, memory, err := s.entry(ctx, r.Tenant, r.ConversationID)
	if err != nil {
		return nil, err
	}
	now := s.options.Now()
	decode := record.Unmarshal
	if r.Newest == 0 {
		decode = record.UnmarshalHead
	}
	c, err := e.live(now, memory, decode)
	if err != nil {
		return nil, err
	}
	return record.Read(c, r, now)
}

// entry returns a conversation as it is now, expired or not, nil when there is none, and
// what its id is as session memory.
func (s *Store) entry(ctx context.Context, tenantName, id string) (*entry, record.Session, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, record.Session{}, store.ErrClosed
	}
	t := s.tenants[tenantName]
	return t.find(id), t.session(id), ctx.Err()
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	all, memory, err := s.all(ctx, l.Tenant)
	if err != nil {
		return nil, err
	}
	return record.BuildPage(ctx, l, int64(all.Len()), s.options.Now(), newest(all), oldest(all), sessions(memory))
}

// newest yields conversations, see record.Newest.
func newest(all *btree.BTreeG[*entry]) record.Newest {
	return func(before []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			visit := func(e *entry) bool { return bytes.Equal(e.key, before) || yield(e.key, e.value) }
			if before == nil {
				all.Descend(visit)
			} else {
				all.DescendLessOrEqual(&entry{key: before}, visit)
			}
		}
	}
}

// oldest yields conversations, see record.Oldest.
func oldest(all *btree.BTreeG[*entry]) record.Oldest {
	return func(after []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			all.AscendGreaterOrEqual(&entry{key: after}, func(e *entry) bool {
				return bytes.Equal(e.key, after) || yield(e.key, e.value)
			})
		}
	}
}

// all is the tenant's conversations by create time as they are now, expired ones included,
// to be walked through without a lock, and its session memory at that moment.
func (s *Store) all(ctx context.Context, tenantName string) (*btree.BTreeG[*entry], *btree.BTreeG[*session], error) {
	s.mu.Lock() // Not for reading: Clone marks what the trees share from now on.
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, store.ErrClosed
	}
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	return t.byCreateTime.Clone(), t.sessions.Clone(), ctx.Err()
}

// Stats implements store.Store.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return store.Stats{}, store.ErrClosed
	}
	return s.stats, ctx.Err()
}
