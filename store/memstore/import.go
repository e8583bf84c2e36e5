package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Import implements store.Store.
func (s *Store) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	id := i.Conversation.GetId()
	history, err := record.NewHistory(i.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	var result *store.Result
	err = s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[i.Tenant]
		old, memory := t.find(id), t.session(id)
		live, err := old.live(now, memory, record.Unmarshal)
		if err != nil {
			return nil, err
		}
		out, err := record.Import(live, i, history, uuid.NewString(), now, memory.Held, &s.options)
		if err != nil {
			return nil, err
		}
		result = out.Result
		return s.takeIn(i.Tenant, old, live != nil, out, now)
	})
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return result, nil
}

// takeIn keeps what record.Import decided, and returns all that changed. Old is what lies
// under the id, nil for nothing: a conversation that is overwritten, or one that has expired.
func (s *Store) takeIn(tenantName string, old *entry, overwritten bool, out *record.Outcome, now time.Time) ([]store.Change, error) {
	s.made++
	out.Record.SetNumber(s.made)
	e, err := newEntry(tenantName, out.Record)
	if err != nil {
		return nil, err
	}
	e.key = out.Record.Key()
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	var changes []store.Change
	if overwritten {
		s.remove(t, old)
	} else {
		expired, err := t.findRoom(old, s.options.MaxConversations, now)
		if err != nil {
			return nil, err
		}
		if expired != nil {
			changes = append(changes, s.end(t, expired, now))
		}
	}
	s.insert(t, e)
	return append(changes, out.Changes...), nil
}

// findRoom is the conversation that must go so that the tenant can have one more, nil when
// none must: the expired one whose id is taken again, or another that has expired. None that
// lives goes, as it would in victim.
func (t *tenant) findRoom(again *entry, limit int, now time.Time) (*entry, error) {
	if again != nil || limit == 0 || len(t.byID) < limit {
		return again, nil
	}
	if e := t.expired(now); e != nil {
		return e, nil
	}
	return nil, store.ErrFull
}
