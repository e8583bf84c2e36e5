// Package memstore keeps conversations in memory: for trying things out, for tests, and for
// services whose conversations need not outlive the process. Begin with [New].
//
// Conversations are kept as the encoded values that a store on disk would write, so that
// nothing is shared with callers and what is decided about a conversation is decided by
// the same code, package record.
package memstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Store is a store.Store in memory.
type Store struct {
	options store.Options

	// writing is held by one write at a time from its decision until its changes have been
	// observed, which gives the observer the order of commit.
	writing sync.Mutex

	// mu guards what follows. It is not held while the observer runs: readers do not wait
	// for it, and see what it is told of.
	mu      sync.RWMutex
	closed  bool
	tenants map[string]*tenant // those that have conversations or session memory
	made    uint32             // conversations so far; tells those of one nanosecond apart
	stats   store.Stats
}

// New returns an empty store.
func New(o store.Options) *Store {
	return &Store{options: o.WithDefaults(), tenants: make(map[string]*tenant)}
}

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	history, err := record.NewHistory(c.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", c.Conversation.GetId(), err)
	}
	return s.writeOne(ctx, c.Tenant, c.Conversation.GetId(), func(old *record.Record, now time.Time) (*record.Outcome, error) {
		return record.Create(old, c, history, uuid.NewString(), now, &s.options)
	})
}

// Append implements store.Store.
func (s *Store) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", a.ConversationID, err)
	}
	return s.writeOne(ctx, a.Tenant, a.ConversationID, func(old *record.Record, now time.Time) (*record.Outcome, error) {
		return record.Append(old, a, drafts, uuid.NewString(), now, &s.options)
	})
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	return s.writeOne(ctx, u.Tenant, u.ConversationID, func(old *record.Record, now time.Time) (*record.Outcome, error) {
		return record.Update(old, u, now, &s.options)
	})
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, d *store.Delete) error {
	_, err := s.writeOne(ctx, d.Tenant, d.ConversationID, func(old *record.Record, now time.Time) (*record.Outcome, error) {
		return record.Delete(old, d, now)
	})
	return err
}

// Close implements store.Store. What was kept is gone.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.tenants = true, nil
	return nil
}

// writeOne does to one conversation what decide decides; old is nil when there is none.
func (s *Store) writeOne(
	ctx context.Context, tenantName, id string,
	decide func(old *record.Record, now time.Time) (*record.Outcome, error),
) (*store.Result, error) {
	var result *store.Result
	err := s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[tenantName]
		e := t.find(id)
		old, err := e.live(now, t.session(id), record.Unmarshal)
		if err != nil {
			return nil, err
		}
		out, err := decide(old, now)
		if err != nil {
			return nil, err
		}
		result = out.Result
		switch {
		case out.Record != nil && old == nil:
			return s.add(tenantName, out, now)
		case out.Record != nil:
			return s.replace(t, e, out)
		case len(out.Changes) > 0:
			s.remove(t, e)
		}
		return out.Changes, nil
	})
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return result, nil
}

// add keeps a new conversation, makes room for it, and returns all that changed.
func (s *Store) add(tenantName string, out *record.Outcome, now time.Time) ([]store.Change, error) {
	s.made++
	out.Record.SetNumber(s.made)
	e, err := newEntry(tenantName, out.Record)
	if err != nil {
		return nil, err
	}
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	victim, err := t.victim(e.gone.ConversationID, s.options.MaxConversations, now)
	if err != nil {
		return nil, err
	}
	var changes []store.Change
	if victim != nil {
		changes = append(changes, s.end(t, victim, now))
	}
	e.key = out.Record.Key()
	s.insert(t, e)
	return append(changes, out.Changes...), nil
}

// replace keeps what a write made of a conversation.
func (s *Store) replace(t *tenant, old *entry, out *record.Outcome) ([]store.Change, error) {
	e, err := newEntry(t.name, out.Record)
	if err != nil {
		return nil, err
	}
	e.key = old.key
	s.takeOut(t, old)
	s.insert(t, e)
	return out.Changes, nil
}

// write takes one step alone and then tells the observer of the changes that it returns.
func (s *Store) write(ctx context.Context, step func(now time.Time) ([]store.Change, error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	changes, err := s.commit(ctx, step)
	if err == nil && len(changes) > 0 {
		s.options.Observe(changes)
	}
	return err
}

// commit takes a step with the lock on the data.
func (s *Store) commit(ctx context.Context, step func(now time.Time) ([]store.Change, error)) ([]store.Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return step(s.options.Now())
}
