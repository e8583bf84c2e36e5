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
	e, err := s.entry(ctx, r.Tenant, r.ConversationID)
	if err != nil {
		return nil, err
	}
	now := s.options.Now()
	c, err := e.live(now)
	if err != nil {
		return nil, err
	}
	return record.Read(c, r, now)
}

// entry returns a conversation as it is now, expired or not; nil when there is none.
func (s *Store) entry(ctx context.Context, tenantName, id string) (*entry, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	return s.tenants[tenantName].find(id), ctx.Err()
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	all, err := s.all(ctx, l.Tenant)
	if err != nil {
		return nil, err
	}
	return record.BuildPage(l, int64(all.Len()), s.options.Now(), func(before []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			visit := func(e *entry) bool { return bytes.Equal(e.key, before) || yield(e.key, e.value) }
			if before == nil {
				all.Descend(visit)
			} else {
				all.DescendLessOrEqual(&entry{key: before}, visit)
			}
		}
	})
}

// all is the tenant's conversations by create time as they are now, expired ones included,
// to be walked through without a lock.
func (s *Store) all(ctx context.Context, tenantName string) (*btree.BTreeG[*entry], error) {
	s.mu.Lock() // Not for reading: Clone marks what the trees share from now on.
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	return t.byCreateTime.Clone(), ctx.Err()
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
