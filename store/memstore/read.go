package memstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
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
	e, ephemeral, all, err := s.entryWithRecords(ctx, r)
	if err != nil {
		return nil, err
	}
	now := s.options.Now()
	if e != nil {
		if err := ephemeral.NotFound(now, e.expires, e.turn != ""); err != nil {
			return nil, err
		}
	}
	c, err := e.live(now, ephemeral, record.UnmarshalHead)
	if err != nil {
		return nil, err
	}
	var part record.Part
	if c != nil && r.Newest != 0 {
		part.Messages = c.Messages
	}
	snapshot, err := record.Read(c, part, r, now)
	if err != nil || snapshot.Unchanged || all == nil {
		return snapshot, err
	}
	snapshot.Records, snapshot.MoreRecords, err = records.WithPrefixes(r.RecordPrefixes, r.ConversationID, all.ascend)
	return snapshot, err
}

// entryWithRecords is entry with the conversation's records of the same instant; nil unless r asks for some.
func (s *Store) entryWithRecords(ctx context.Context, r *store.Read) (*entry, record.Ephemeral, *scope, error) {
	if len(r.RecordPrefixes) == 0 {
		e, ephemeral, err := s.entry(ctx, r.Tenant, r.ConversationID)
		return e, ephemeral, nil, err
	}
	s.mu.Lock() // A read lock is not enough, see all.
	defer s.mu.Unlock()
	if s.closed {
		return nil, record.Ephemeral{}, nil, store.ErrClosed
	}
	t := s.tenants[r.Tenant]
	e, all := t.find(r.ConversationID), newScope()
	if e != nil {
		all = e.records.copied()
	}
	return e, t.ephemeralState(r.ConversationID), all, ctx.Err()
}

// entry returns a conversation, expired or not, nil if there is none, and the ephemeral state of
// its id.
func (s *Store) entry(ctx context.Context, tenantName, id string) (*entry, record.Ephemeral, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, record.Ephemeral{}, store.ErrClosed
	}
	t := s.tenants[tenantName]
	return t.find(id), t.ephemeralState(id), ctx.Err()
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	all, ephemeral, err := s.all(ctx, l.Tenant)
	if err != nil {
		return nil, err
	}
	return record.BuildPage(ctx, l, int64(all.Len()), 1, s.options.Now(), newest(all), oldest(all),
		ephemeralStates(ephemeral))
}

// newest implements record.Newest.
func newest(all *btree.BTreeG[*entry]) record.Newest {
	return func(before []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			visit := func(e *entry) bool { return bytes.Equal(e.key, before) || yield(e.key, e.head) }
			if before == nil {
				all.Descend(visit)
			} else {
				all.DescendLessOrEqual(&entry{key: before}, visit)
			}
		}
	}
}

// oldest implements record.Oldest.
func oldest(all *btree.BTreeG[*entry]) record.Oldest {
	return func(after []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			all.AscendGreaterOrEqual(&entry{key: after}, func(e *entry) bool {
				return bytes.Equal(e.key, after) || yield(e.key, e.head)
			})
		}
	}
}

// all returns copies of a tenant's indexes, which can be read without a lock: its conversations by
// create time, expired ones included, and its ephemeral ids.
func (s *Store) all(
	ctx context.Context, tenantName string,
) (*btree.BTreeG[*entry], *btree.BTreeG[*ephemeralID], error) {
	s.mu.Lock() // A read lock is not enough: Clone marks the shared nodes of the trees.
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, store.ErrClosed
	}
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	return t.byCreateTime.Clone(), t.ephemeral.Clone(), ctx.Err()
}

// tenantPosition begins every position of Tenants but the first, so that a position is not empty after a
// tenant whose name is empty.
const tenantPosition = "after "

// Tenants implements store.Store. It sorts the names of all tenants for each page.
func (s *Store) Tenants(ctx context.Context, after string, limit int) (tenants []string, next string, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, "", store.ErrClosed
	}
	last, found := strings.CutPrefix(after, tenantPosition)
	if after != "" && !found {
		return nil, "", fmt.Errorf("tenants: %w", store.ErrPageToken)
	}
	for name, t := range s.tenants {
		if (len(t.byID) > 0 || t.stats.Records > 0) && (after == "" || name > last) {
			tenants = append(tenants, name)
		}
	}
	slices.Sort(tenants)
	if len(tenants) > limit {
		tenants = tenants[:limit]
		next = tenantPosition + tenants[limit-1]
	}
	return tenants, next, ctx.Err()
}

// TenantStats implements store.Store.
func (s *Store) TenantStats(ctx context.Context, tenantName string) (store.Stats, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return store.Stats{}, store.ErrClosed
	}
	if t := s.tenants[tenantName]; t != nil {
		return t.stats, ctx.Err()
	}
	return store.Stats{}, ctx.Err()
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
