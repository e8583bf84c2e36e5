package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/memstore"
)

// storage is all that is kept: the conversations, and every word that was said in them.
type storage struct {
	store.Store
	interactions *interactionlog.Log // nil: there is none
	changes      *changeLog
}

// openStorage opens what the settings name. Committed changes go to the interaction log, then
// to observe: whoever hears of a message finds it in the log. A failure from which the store
// cannot recover goes to failed.
func openStorage(ctx context.Context, c *config.Config, log *slog.Logger, observe func([]store.Change), failed func(error)) (*storage, error) {
	s := &storage{changes: newChangeLog(log, c.LogLevel, int64(c.MemoryWarningBytes))}
	kept, err := openStore(ctx, c, log, func(committed []store.Change) {
		if s.interactions != nil {
			s.interactions.Committed(committed)
		}
		observe(committed)
		s.changes.Committed(committed)
	}, failed)
	if err != nil {
		return nil, err
	}
	s.Store = kept
	go s.changes.write(context.WithoutCancel(ctx), kept.Stats)
	o := interactionlog.Options{
		Dir: filepath.Join(c.DataDir, "interactions"), Redact: c.LogRedact, RetentionDays: c.LogRetentionDays, Log: log,
	}
	if !c.InteractionLog {
		if c.Store == "memory" {
			return s, nil // The files belong to another store.
		}
		if err := interactionlog.TurnOff(ctx, o, kept, auth.DefaultTenant); err != nil && ctx.Err() == nil {
			log.Warn("interaction log off; entries from before the last stop are missing", "error", err)
		}
		return s, nil
	}
	s.interactions, err = interactionlog.Open(o)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.interactions.CatchUp(ctx, kept, auth.DefaultTenant); err != nil && ctx.Err() == nil {
		log.Warn("interaction log may lack what was said before the last stop; the next start tries again", "error", err)
	}
	return s, nil
}

// Close ends both: first the store, after whose last change the logs end.
func (s *storage) Close() error {
	err := s.Store.Close()
	if s.interactions != nil {
		err = errors.Join(err, s.interactions.Close())
	}
	s.changes.Close()
	return err
}

// openStore opens the store that the settings name. A failure from which it cannot recover
// goes to failed.
func openStore(ctx context.Context, c *config.Config, log *slog.Logger, observe func([]store.Change), failed func(error)) (store.Store, error) {
	o := store.Options{
		Observe: observe, MaxMessages: c.MaxMessages, TTL: c.TTL,
		MaxConversations: c.MaxConversations, MaxConversationBytes: c.MaxConversationBytes,
	}
	if c.Store == "memory" {
		log.Info("store opened", "store", c.Store, "durable", false)
		return memstore.New(o), nil
	}
	path := filepath.Join(c.DataDir, storeName)
	s, err := boltstore.Open(path, boltstore.Options{Options: o, Check: checkAtStart(ctx, log), OnFailure: failed})
	if err != nil {
		return nil, err
	}
	log.Info("store opened", "store", c.Store, "durable", true, "path", path)
	return s, nil
}
