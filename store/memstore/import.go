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
		old, ephemeral := t.find(id), t.ephemeralState(id)
		live, err := old.live(now, ephemeral, record.Unmarshal)
		if err != nil {
			return nil, err
		}
		out, err := record.Import(live, i, history, uuid.NewString(), now, ephemeral.Held, &s.options)
		if err != nil {
			return nil, err
		}
		result = out.Result
		return s.storeImport(i.Tenant, old, live != nil, out, now)
	})
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return result, nil
}

// storeImport stores the outcome of record.Import and returns all changes. old is the present entry
// with the id, nil if there is none. It has expired unless overwritten is true.
func (s *Store) storeImport(
	tenantName string, old *entry, overwritten bool, out *record.Outcome, now time.Time,
) ([]store.Change, error) {
	s.created++
	out.Record.SetNumber(s.created)
	e, err := newEntry(tenantName, out.Record, nil)
	if err != nil {
		return nil, err
	}
	e.key = out.Record.Key()
	t := s.tenants[tenantName]
	if t == nil {
		t = newTenant(tenantName)
	}
	limits, replaced := s.options.Limits(tenantName), old
	if !overwritten {
		if replaced, err = t.expiredToReplace(old, limits.MaxConversations, now); err != nil {
			return nil, err
		}
	}
	if err := limits.CheckBytes(t.stats.Bytes, e.bytes+out.Records.Bytes()-replaced.size()); err != nil {
		return nil, err
	}
	var changes []store.Change
	switch {
	case overwritten:
		s.remove(t, old)
	case replaced != nil:
		changes = append(changes, s.removeAndReport(t, replaced, now))
	}
	s.index(t, e)
	s.editRecords(t, e, out.Records)
	return append(changes, out.Changes...), nil
}

// expiredToReplace returns the expired conversation that must be removed so that the tenant can
// have one more, nil if none must. That is old, which has the same id, or any other expired one.
// Unlike victim, it never returns a conversation that has not expired.
func (t *tenant) expiredToReplace(old *entry, limit int, now time.Time) (*entry, error) {
	if old != nil || limit == 0 || len(t.byID) < limit {
		return old, nil
	}
	if e := t.expired(now); e != nil {
		return e, nil
	}
	return nil, store.ErrFull
}
