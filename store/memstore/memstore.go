// Package memstore keeps conversations in memory. It is meant for trials, for tests, and for
// services whose conversations need not outlive the process.
//
// Conversations are stored as the encoded values that a store on disk would write, with the messages apart from the
// rest. They therefore share no memory with callers, and package record decides about every write, as in the other
// stores. Start at [New].
package memstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Store implements store.Store in memory.
type Store struct {
	options store.Options

	// writing is locked by one write at a time, from its decision until its changes have been
	// observed. The observer therefore receives changes in the order of commit.
	writing sync.Mutex

	// mu guards the fields below. It is not held while the observer runs: readers do not wait for
	// the observer, and already see the changes that it receives.
	mu      sync.RWMutex
	closed  bool
	tenants map[string]*tenant // see deleteIfEmpty
	created uint32             // conversations created so far; distinguishes those with the same create time
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
	create := func(old *record.Record, _ *records.Input, now time.Time) (*record.Outcome, error) {
		if old != nil || c.RecordsOf == "" {
			return record.Create(old, c, history, records.Counts{}, uuid.NewString(), now, &s.options)
		}
		source := s.tenants[c.Tenant].live(c.RecordsOf, now)
		if c.RecordsOfUID != "" && source.uid() != c.RecordsOfUID {
			return nil, store.ErrNotFound
		}
		counts, copied := source.ownRecords()
		out, err := record.Create(nil, c, history, counts, uuid.NewString(), now, &s.options)
		if err == nil {
			out.Records, err = copied.copies(now)
		}
		return out, err
	}
	return s.writeOne(ctx, c.Tenant, c.Conversation.GetId(), nil, false, create)
}

// Append implements store.Store.
func (s *Store) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", a.ConversationID, err)
	}
	decide := func(old *record.Record, in *records.Input, now time.Time) (*record.Outcome, error) {
		if a.Queued != nil {
			a.Queued()
		}
		return record.Append(old, a, drafts, in, uuid.NewString(), now, &s.options)
	}
	return s.writeOne(ctx, a.Tenant, a.ConversationID, a.Records, a.MayExceed(), decide)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	update := func(old *record.Record, _ *records.Input, now time.Time) (*record.Outcome, error) {
		return record.Update(old, u, now, &s.options)
	}
	return s.writeOne(ctx, u.Tenant, u.ConversationID, nil, u.OnlyRemoves(), update)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, d *store.Delete) error {
	remove := func(old *record.Record, _ *records.Input, now time.Time) (*record.Outcome, error) {
		return record.Delete(old, d, now)
	}
	_, err := s.writeOne(ctx, d.Tenant, d.ConversationID, nil, false, remove)
	return err
}

// Close implements store.Store. It discards all data.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.tenants = true, nil
	return nil
}

// writeOne changes one conversation and the records of writes as decide says. old is the conversation before the
// write, nil if there is none. If mayExceed is set, the tenant may have more bytes than its limit afterwards.
func (s *Store) writeOne(
	ctx context.Context, tenantName, id string, writes []*parleyv1.RecordWrite, mayExceed bool,
	decide func(old *record.Record, in *records.Input, now time.Time) (*record.Outcome, error),
) (*store.Result, error) {
	var result *store.Result
	err := s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[tenantName]
		e := t.find(id)
		old, err := e.live(now, t.ephemeralState(id), record.Unmarshal)
		if err != nil {
			return nil, err
		}
		_, own := t.live(id, now).ownRecords()
		in, err := t.recordInput(own, false, writes, s.options.Limits(tenantName).MaxRecordBytes)
		if err != nil {
			return nil, err
		}
		out, err := decide(old, in, now)
		if err != nil {
			return nil, err
		}
		result = out.Result
		switch {
		case out.Record != nil && old == nil:
			return s.add(tenantName, out, now)
		case out.Record != nil:
			return s.replace(t, e, out, mayExceed)
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

// add stores a new conversation, removes another one if capacity requires it, and returns all
// changes.
func (s *Store) add(tenantName string, out *record.Outcome, now time.Time) ([]store.Change, error) {
	s.created++
	out.Record.SetNumber(s.created)
	e, err := newEntry(tenantName, out.Record, nil)
	if err != nil {
		return nil, err
	}
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	limits := s.options.Limits(tenantName)
	victim, err := t.victim(e.removal.ConversationID, limits.MaxConversations, now)
	if err != nil {
		return nil, err
	}
	if err := limits.CheckBytes(t.stats.Bytes, e.bytes-victim.size()+out.Records.Bytes()); err != nil {
		return nil, err
	}
	var changes []store.Change
	if victim != nil {
		changes = append(changes, s.removeAndReport(t, victim, now))
	}
	e.key = out.Record.Key()
	s.index(t, e)
	s.editRecords(t, e, out.Records)
	return append(changes, out.Changes...), nil
}

// replace stores a conversation that a write has changed. For mayExceed see writeOne.
func (s *Store) replace(t *tenant, old *entry, out *record.Outcome, mayExceed bool) ([]store.Change, error) {
	e, err := newEntry(t.name, out.Record, old)
	if err != nil {
		return nil, err
	}
	if !mayExceed {
		delta := e.bytes - old.bytes + out.Records.Bytes()
		if err := s.options.Limits(t.name).CheckBytes(t.stats.Bytes, delta); err != nil {
			return nil, err
		}
	}
	e.key, e.records = old.key, old.records
	s.unindex(t, old)
	s.index(t, e)
	s.editRecords(t, e, out.Records)
	return out.Changes, nil
}

// write runs one step alone and then passes the changes that it returns to the observer.
func (s *Store) write(ctx context.Context, step func(now time.Time) ([]store.Change, error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	changes, err := s.commit(ctx, step)
	if err == nil && len(changes) > 0 {
		s.options.Observe(changes)
	}
	return err
}

// commit runs a step with mu locked.
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
