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

// storage is the store and the logs that record its changes.
type storage struct {
	store.Store
	interactions *interactionlog.Log // nil if the interaction log is off
	changes      *changeLog
}

// openStorage opens the store and the interaction log of the settings. Committed changes go to the
// interaction log first, then to observe: whoever receives a change finds its message in the log.
// failed is called with an error from which the store cannot recover.
func openStorage(ctx context.Context, c *config.Config, log *slog.Logger, observe func([]store.Change), failed func(error)) (*storage, error) {
	s := &storage{changes: newChangeLog(log, c.LogLevel, int64(c.MemoryWarningBytes))}
	opened, err := openStore(ctx, c, log, func(committed []store.Change) {
		if s.interactions != nil {
			s.interactions.Committed(committed)
		}
		observe(committed)
		s.changes.Committed(committed)
	}, failed)
	if err != nil {
		return nil, err
	}
	s.Store = opened
	go s.changes.run(context.WithoutCancel(ctx), opened.Stats)
	o := interactionlog.Options{
		Dir: filepath.Join(c.DataDir, "interactions"), Redact: c.LogRedact, RetentionDays: c.LogRetentionDays, Log: log,
	}
	if !c.InteractionLog {
		if c.Store == "memory" {
			return s, nil // The files in the directory belong to another store.
		}
		if err := interactionlog.TurnOff(ctx, o, opened, auth.DefaultTenant); err != nil && ctx.Err() == nil {
			log.Warn("interaction log off; entries from before the last stop are missing", "error", err)
		}
		return s, nil
	}
	s.interactions, err = interactionlog.Open(o)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.interactions.CatchUp(ctx, opened, auth.DefaultTenant); err != nil && ctx.Err() == nil {
		log.Warn("interaction log may lack entries from before the last stop; the next start tries again", "error", err)
	}
	return s, nil
}

// Close closes the store first, so that the logs receive its last change before they close.
func (s *storage) Close() error {
	err := s.Store.Close()
	if s.interactions != nil {
		err = errors.Join(err, s.interactions.Close())
	}
	s.changes.Close()
	return err
}

// openStore opens the store that the settings name. failed is called with an error from which the
// store cannot recover.
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
