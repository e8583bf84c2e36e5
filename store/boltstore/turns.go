package boltstore

import (
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// FindTurn implements store.Store.
func (s *Store) FindTurn(ctx context.Context, f *store.FindTurn) (found *store.FoundTurn, err error) {
	err = store.ErrTurnNotFound
	if f.ConversationID != "" {
		err = s.withTurns(ctx, f.Tenant, f.ConversationID, func(r *record.Record) (err error) {
			found, err = r.FindTurn(f.TurnID)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("turn %q: %w", f.TurnID, err)
	}
	return found, nil
}

// ListTurns implements store.Store.
func (s *Store) ListTurns(ctx context.Context, l *store.ListTurns) (page *store.TurnPage, err error) {
	page = new(store.TurnPage)
	if l.ConversationID != "" {
		err = s.withTurns(ctx, l.Tenant, l.ConversationID, func(r *record.Record) (err error) {
			page, err = r.ListTurns(l)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list turns: %w", err)
	}
	return page, nil
}

// withTurns calls read with the head of a conversation. Errors: store.ErrNotFound, that of read.
func (s *Store) withTurns(ctx context.Context, tenant, id string, read func(*record.Record) error) error {
	now, mayHaveEphemeral := s.options.Now(), s.tally.mayHaveEphemeral()
	return s.read(ctx, func(tx *bolt.Tx, r *reader) error {
		c, err := r.find(tenant, id, head)
		if err != nil {
			return err
		}
		if c.record.Expired(now, readStates(tx, s.tally.epoch, mayHaveEphemeral, tenant).Of(id)) {
			return store.ErrNotFound
		}
		return read(c.record)
	})
}
