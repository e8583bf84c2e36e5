package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"golang.org/x/sync/errgroup"
)

// A sweep deletes at most sweepBatch conversations per transaction, so that writers never wait long.
const (
	sweepInterval = 2 * time.Second
	sweepBatch    = 256
)

// run serves until ctx ends or the store fails. Then it stops in order and returns the errors.
// gcBallast is the size of the GC ballast in bytes. run calls onStop when it starts to stop, for any
// reason.
func run(ctx context.Context, c *config.Config, log *slog.Logger, gcBallast int, onStop func()) (err error) {
	var turns *turn.Manager // assigned before the first write
	hub := watch.New(watch.Options{MaxWatchers: c.MaxWatchers})
	// storeOpen ends when the store fails: then turns can save nothing any more.
	storeOpen, storeFailed := context.WithCancelCause(context.WithoutCancel(ctx))
	opened, err := openStorage(ctx, c, log, func(committed []store.Change) {
		hub.Committed(committed)
		turns.Committed(committed)
	}, storeFailed)
	if err != nil {
		storeFailed(nil)
		return err
	}
	defer func() {
		err = errors.Join(err, opened.Close())
		storeFailed(nil)
	}()
	agents, closeAgents, err := openAgents(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAgents()) }()
	defer onStop()
	// Turns continue after the signal to stop, for the grace period.
	turns = turn.New(context.WithoutCancel(ctx), turn.Options{
		Store: opened, Agents: agents, Audience: hub, Log: log, TurnTimeout: c.TurnTimeout, IdleTimeout: c.IdleTimeout,
		MaxAnswerBytes: c.MaxAnswerBytes, MaxConversationBytes: c.MaxConversationBytes, MaxTurns: c.MaxTurns,
	})
	if err := turns.Recover(ctx); err != nil {
		if ctx.Err() != nil && storeOpen.Err() == nil {
			return nil // A signal to stop came first. The next start completes the recovery.
		}
		return err
	}
	backuper, _ := opened.Store.(store.Backuper) // Nil if the store has no backups.
	service, err := rpc.New(rpc.Options{
		Store: opened, Backuper: backuper, StoreName: c.Store, Turns: turns, Hub: hub, Agents: agents,
		Interactions: opened.interactions, MaxMessageBytes: c.MaxMessageBytes, Version: version, Headroom: gcBallast, Log: log,
	})
	if err != nil {
		return err
	}
	transports, err := openTransports(ctx, c, service, log)
	if err != nil {
		return err
	}
	work, stopWork := context.WithCancel(ctx)
	defer stopWork()
	group, serving := errgroup.WithContext(work) // serving ends with ctx or when a transport fails.
	transports.serve(group)
	// The memory that only the start used, such as that of compiled rules, is garbage. The GC ballast would keep it.
	group.Go(func() error { debug.FreeOSMemory(); return nil })
	group.Go(func() error { sweep(serving, opened, log); return nil })
	if opened.interactions != nil {
		group.Go(func() error { opened.interactions.Maintain(serving); return nil })
	}
	group.Go(func() error {
		defer stopWork()
		select {
		case <-storeOpen.Done():
		case <-serving.Done():
		}
		onStop()
		transports.stop(storeOpen, c.StopGrace, turns)
		return context.Cause(storeOpen)
	})
	return group.Wait()
}

// sweep deletes expired conversations, and those above the capacity, every sweepInterval.
func sweep(ctx context.Context, s store.Store, log *slog.Logger) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = s.Sweep(ctx, sweepBatch); err != nil && ctx.Err() == nil {
				log.Error("sweep failed", "error", err)
				break
			}
		}
	}
}

// newLogger returns a logger that writes to the queue. If the settings choose no format, it writes
// text to a terminal and JSON otherwise.
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
