package memstore

import (
	"context"
	"fmt"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Purge implements store.Store. Each step deletes one conversation.
func (s *Store) Purge(ctx context.Context, p *store.Purge) (store.Purged, error) {
	var purged store.Purged
	all, _, err := s.all(ctx, p.Tenant)
	if err != nil {
		return purged, err
	}
	cut := s.options.Now().Add(-p.InactiveFor)
	all.Ascend(func(e *entry) bool {
		if e.appended.After(cut) {
			return true
		}
		var done bool
		if done, err = s.purge(ctx, p, e.removal.ConversationID, cut); err != nil {
			return false
		}
		if done {
			purged.Count++
			if len(purged.SampleIDs) < store.MaxSampleIDs {
				purged.SampleIDs = append(purged.SampleIDs, e.removal.ConversationID)
			}
		}
		return true
	})
	return purged, err
}

// purge deletes a conversation if it still exists and is still inactive, and reports whether it
// did.
func (s *Store) purge(ctx context.Context, p *store.Purge, id string, cut time.Time) (done bool, err error) {
	err = s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[p.Tenant]
		e := t.find(id)
		if done = e != nil && !e.expired(now, t.ephemeralState(id)) && !e.appended.After(cut); !done || p.DryRun {
			return nil, nil
		}
		s.remove(t, e)
		change := e.removal
		change.Kind, change.Time = parleyv1.ChangeKind_CHANGE_KIND_DELETED, now
		return []store.Change{change}, nil
	})
	return done, err
}

// Sweep implements store.Store.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	err = s.write(ctx, func(now time.Time) ([]store.Change, error) {
		var changes []store.Change
		done := 0
		for _, t := range s.tenants {
			for ; done < limit; done++ {
				if s.sweepRecord(t, now) {
					continue
				}
				e := t.expired(now)
				if e == nil {
					e = t.excess(s.options.Limits(t.name).MaxConversations)
				}
				if e == nil {
					break
				}
				changes = append(changes, s.removeAndReport(t, e, now))
			}
		}
		more = done >= limit
		return changes, nil
	})
	return more, err
}

// SaveProgress implements store.Store. It stores nothing, because no turn outlives the process.
func (s *Store) SaveProgress(ctx context.Context, p *store.Progress) error {
	e, ephemeral, err := s.entry(ctx, p.Tenant, p.ConversationID)
	if err == nil && (e == nil || e.expired(s.options.Now(), ephemeral) || e.turn == "" || e.turn != p.TurnID) {
		err = fmt.Errorf("turn %q: %w", p.TurnID, store.ErrTurnEnded)
	}
	if err != nil {
		return fmt.Errorf("conversation %q: %w", p.ConversationID, err)
	}
	return nil
}

// Abandoned implements store.Store. It returns no turns, because the store is empty when it is
// opened.
func (s *Store) Abandoned(ctx context.Context, _ string) (turns []store.Progress, next string, err error) {
	_, _, err = s.entry(ctx, "", "")
	return nil, "", err
}
