package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/memstore"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
)

// Sweeping goes in bounded steps, so that writers never wait for long.
const (
	sweepEvery = 2 * time.Second
	sweepStep  = 256
)

// run serves until ctx ends or the store fails, then stops in order. It calls stopping when
// it begins to, for whatever reason, and returns what went wrong.
func run(ctx context.Context, c *config.Config, log *slog.Logger, stopping func()) (err error) {
	var turns *turn.Manager // made before the first write
	hub, changes := watch.New(watch.Options{MaxWatchers: c.MaxWatchers}), newChangeLog(log, c.LogLevel, int64(c.MemoryWarningBytes))
	// Ends when the store has failed: nothing that a turn says can be kept any more.
	healthy, failed := context.WithCancelCause(context.WithoutCancel(ctx))
	kept, err := openStore(c, log, func(committed []store.Change) {
		hub.Committed(committed)
		turns.Committed(committed)
		changes.Committed(committed)
	}, failed)
	if err != nil {
		failed(nil)
		return err
	}
	go changes.write(context.WithoutCancel(ctx), kept.Stats)
	defer func() {
		err = errors.Join(err, kept.Close())
		failed(nil)
		changes.Close() // after the last change
	}()
	agents, err := newAgents(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agents.Close()) }()
	logAgents(log, c)
	defer stopping()
	// The turns outlive the signal to stop: they have a grace of their own.
	turns = turn.New(context.WithoutCancel(ctx), turn.Options{
		Store: kept, Agents: agents, Audience: hub, Log: log, TurnTimeout: c.TurnTimeout, IdleTimeout: c.IdleTimeout,
		MaxAnswerBytes: c.MaxAnswerBytes, MaxConversationBytes: c.MaxConversationBytes, MaxTurns: c.MaxTurns,
	})
	if err := turns.Recover(ctx); err != nil {
		if ctx.Err() != nil && healthy.Err() == nil {
			return nil // Told to stop: the next start goes on with it.
		}
		return err
	}
	service, err := rpc.New(rpc.Options{
		Store: kept, StoreName: c.Store, Turns: turns, Hub: hub, Agents: agents,
		MaxMessageBytes: c.MaxMessageBytes, Version: version, Log: log,
	})
	if err != nil {
		return err
	}
	doors, err := openDoors(ctx, c, service, log)
	if err != nil {
		return err
	}
	work, stopWork := context.WithCancel(ctx)
	defer stopWork()
	group, broken := errgroup.WithContext(work)
	doors.serve(group)
	group.Go(func() error { sweep(broken, kept, log); return nil })
	group.Go(func() error {
		defer stopWork()
		select {
		case <-healthy.Done():
		case <-broken.Done():
		}
		stopping()
		doors.stop(healthy, c.StopGrace, turns)
		return context.Cause(healthy)
	})
	return group.Wait()
}

// openStore opens the store that the settings name. A failure from which it cannot recover
// goes to failed.
func openStore(c *config.Config, log *slog.Logger, observe func([]store.Change), failed func(error)) (store.Store, error) {
	o := store.Options{
		Observe: observe, MaxMessages: c.MaxMessages, TTL: c.TTL,
		MaxConversations: c.MaxConversations, MaxConversationBytes: c.MaxConversationBytes,
	}
	if c.Store == "memory" {
		log.Info("store opened", "store", c.Store, "durable", false)
		return memstore.New(o), nil
	}
	path := filepath.Join(c.DataDir, "parley.db")
	s, err := boltstore.Open(path, boltstore.Options{Options: o, OnFailure: failed})
	if err != nil {
		return nil, err
	}
	log.Info("store opened", "store", c.Store, "durable", true, "path", path)
	return s, nil
}

// sweep removes what has expired or is over capacity, every few seconds.
func sweep(ctx context.Context, s store.Store, log *slog.Logger) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = s.Sweep(ctx, sweepStep); err != nil && ctx.Err() == nil {
				log.Error("sweep failed", "error", err)
				break
			}
		}
	}
}

// newLogger writes text to a terminal and JSON elsewhere, unless told.
func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	f, isFile := w.(*os.File)
	if c.LogFormat == "text" || c.LogFormat == "" && isFile && term.IsTerminal(int(f.Fd())) {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}
