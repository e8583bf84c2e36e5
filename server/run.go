package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"golang.org/x/sync/errgroup"
)

// Sweeping goes in bounded steps, so that writers never wait for long.
const (
	sweepEvery = 2 * time.Second
	sweepStep  = 256
)

// run serves until ctx ends or the store fails, then stops in order. It calls stopping when
// it begins to, for whatever reason, and returns what went wrong. Headroom is in bytes.
func run(ctx context.Context, c *config.Config, log *slog.Logger, headroom int, stopping func()) (err error) {
	var turns *turn.Manager // made before the first write
	hub := watch.New(watch.Options{MaxWatchers: c.MaxWatchers})
	// Ends when the store has failed: nothing that a turn says can be kept any more.
	healthy, failed := context.WithCancelCause(context.WithoutCancel(ctx))
	kept, err := openStorage(ctx, c, log, func(committed []store.Change) {
		hub.Committed(committed)
		turns.Committed(committed)
	}, failed)
	if err != nil {
		failed(nil)
		return err
	}
	defer func() {
		err = errors.Join(err, kept.Close())
		failed(nil)
	}()
	agents, closeAgents, err := openAgents(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAgents()) }()
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
	backuper, _ := kept.Store.(store.Backuper) // Nil: it has none.
	service, err := rpc.New(rpc.Options{
		Store: kept, Backuper: backuper, StoreName: c.Store, Turns: turns, Hub: hub, Agents: agents,
		Interactions: kept.interactions, MaxMessageBytes: c.MaxMessageBytes, Version: version, Headroom: headroom, Log: log,
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
	if kept.interactions != nil {
		group.Go(func() error { kept.interactions.Maintain(broken); return nil })
	}
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

// newLogger returns a logger that writes to the queue. Unless the settings choose a format, it
// writes text to a terminal and JSON otherwise.
func newLogger(c *config.Config, stderr *logQueue) *slog.Logger {
	handler := func(w io.Writer) slog.Handler {
		o := &slog.HandlerOptions{Level: c.LogLevel}
		if c.LogFormat == "text" || c.LogFormat == "" && stderr.isTerminal() {
			return slog.NewTextHandler(w, o)
		}
		return slog.NewJSONHandler(w, o)
	}
	stderr.reportWith(handler(stderr.out))
	return slog.New(handler(stderr))
}
