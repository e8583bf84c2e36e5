package storetest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

// faultyRetentionStores returns stores that ignore a field of the retention, by the name of the bug.
func faultyRetentionStores() map[string]faultyStore {
	return map[string]faultyStore{
		"a conversation with keep_all drops messages": {
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store { return ignoresKeepAll{s} }),
		},
		"a conversation with no_expiry expires": {open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			return ignoresNoExpiry{openMemory(tb, dir, o), o.WithDefaults().Now}
		}},
		"a conversation with no_eviction is evicted": {
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store { return ignoresNoEviction{s} }),
		},
	}
}

// ignoresKeepAll drops the messages above max_messages of conversations with keep_all.
type ignoresKeepAll struct{ store.Store }

func (s ignoresKeepAll) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	snapshot, err := s.Store.Read(ctx, r)
	if err == nil && snapshot.Conversation.GetRetention().GetKeepAll() {
		limit, before := int(snapshot.Conversation.GetRetention().GetMaxMessages()), len(snapshot.Messages)
		snapshot.Messages = snapshot.Messages.Newest(min(limit, snapshot.Messages.Count()))
		snapshot.Conversation.SizeBytes -= int32(before - len(snapshot.Messages))
	}
	return snapshot, err
}

// ignoresNoExpiry does not find conversations with no_expiry after their ttl.
type ignoresNoExpiry struct {
	store.Store
	now func() time.Time
}

func (s ignoresNoExpiry) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	snapshot, err := s.Store.Read(ctx, r)
	if err != nil {
		return nil, err
	}
	c := snapshot.Conversation
	end := c.GetLastAppendTime().AsTime().Add(c.GetRetention().GetTtl().AsDuration())
	if c.GetRetention().GetNoExpiry() && c.GetActiveTurnId() == "" && !s.now().Before(end) {
		return nil, store.ErrNotFound
	}
	return snapshot, nil
}

// ignoresNoEviction evicts conversations with no_eviction if no others can be evicted.
type ignoresNoEviction struct{ store.Store }

func (s ignoresNoEviction) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	result, err := s.Store.Create(ctx, c)
	if errors.Is(err, store.ErrFull) && s.evict(ctx, c.Tenant) {
		return s.Store.Create(ctx, c)
	}
	return result, err
}

// evict deletes the oldest conversation with no_eviction and without a running turn, and reports whether there was one.
func (s ignoresNoEviction) evict(ctx context.Context, tenant string) bool {
	page, err := s.List(ctx, &store.List{Tenant: tenant, PageSize: 1000, OldestFirst: true})
	if err != nil {
		return false
	}
	for _, e := range page.Entries {
		c := e.GetConversation()
		if c.GetRetention().GetNoEviction() && c.GetActiveTurnId() == "" {
			return s.Delete(ctx, &store.Delete{Tenant: tenant, ConversationID: c.GetId()}) == nil
		}
	}
	return false
}
