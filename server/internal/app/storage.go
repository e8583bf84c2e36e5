package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/memstore"
	"github.com/parleyhq/parley/store/redisstore"
)

// Storage is the store and the logs that record its changes. Create it with NewStorage and call Open
// before any other method.
type Storage struct {
	store.Store // nil before Open

	limits       *limit.Tenants
	log          *slog.Logger
	interactions *interactionlog.Log // nil before Open, and if the interaction log is off
	changes      *changeLog
	// observers are in the order in which they receive a commit; nil until Open returns. Commits of other servers may
	// arrive earlier. No observer needs them, because the server accepts no calls yet.
	observers atomic.Pointer[[]Observer]
}

// Observer receives the committed changes of a store. It must return quickly and must not call the
// store.
type Observer interface {
	Committed(changes []store.Change)
}

// CommitObserver also receives a description of each transaction of the store, if the store has a file. It must
// return quickly and must not call the store.
type CommitObserver interface {
	StoreCommit(c store.Commit)
}

// NewStorage returns a storage that is not open. limits are those of tenants, which may change. level is the
// minimum level that log accepts.
func NewStorage(c *config.Config, limits *limit.Tenants, log *slog.Logger, level slog.Leveler) *Storage {
	return &Storage{limits: limits, log: log, changes: newChangeLog(log, level, int64(c.MemoryWarningBytes))}
}

// Open opens the store and the interaction log of the settings. Each commit goes to these observers,
// one after the other: the interaction log unless it is off, observers, the change log. So an observer that
// receives a change finds its message in the interaction log. Observers may be CommitObservers, too.
// failed is called with an error from which the store cannot recover. After an error, nothing is open.
func (s *Storage) Open(ctx context.Context, c *config.Config, observers []Observer, failed func(error)) error {
	opened, err := s.openStore(ctx, c, observers, failed)
	if err != nil {
		return err
	}
	s.Store = opened
	go s.changes.run(context.WithoutCancel(ctx), opened.Stats)
	if err := s.openInteractions(ctx, c); err != nil {
		return errors.Join(err, s.Close())
	}
	var all []Observer
	if s.interactions != nil {
		all = append(all, s.interactions)
	}
	all = append(append(all, observers...), s.changes)
	s.observers.Store(&all)
	return nil
}

// committed passes the changes of a commit to the observers.
func (s *Storage) committed(changes []store.Change) {
	all := s.observers.Load()
	if all == nil {
		return
	}
	for _, o := range *all {
		o.Committed(changes)
	}
}

// openInteractions opens the interaction log and adds the entries that it lacks. If the log is off, it
// ends the log of an earlier process instead; see [interactionlog.TurnOff].
func (s *Storage) openInteractions(ctx context.Context, c *config.Config) (err error) {
	o := interactionlog.Options{
		Dir: filepath.Join(c.DataDir, "interactions"), Redact: c.LogRedact, RetentionDays: c.LogRetentionDays, Log: s.log,
		Shared: c.Peers.AdvertiseAddress != "",
	}
	if c.Store == "bolt" {
		o.CheckSpace = boltstore.CheckSpace // Deletes must find space on a disk that the log would fill.
	}
	if !c.InteractionLog {
		if c.Store == "memory" {
			return nil // The files in the directory belong to another store.
		}
		if err := interactionlog.TurnOff(ctx, o, s.Store); err != nil && ctx.Err() == nil {
			s.log.Warn("interaction log off; entries from before the last stop are missing", "error", err)
		}
		return nil
	}
	if s.interactions, err = interactionlog.Open(o); err != nil {
		return err
	}
	if err := s.interactions.CatchUp(ctx, s.Store); err != nil && ctx.Err() == nil {
		s.log.Warn("interaction log may lack entries from before the last stop; the next start tries again", "error", err)
	}
	return nil
}

// Maintain maintains the interaction log until ctx ends. If the log is off, it returns at once.
func (s *Storage) Maintain(ctx context.Context) {
	if s.interactions != nil {
		s.interactions.Maintain(ctx)
	}
}

// Close closes the store first, so that the logs receive its last change before they close.
func (s *Storage) Close() error {
	err := s.Store.Close()
	if s.interactions != nil {
		err = errors.Join(err, s.interactions.Close())
	}
	s.changes.Close()
	return err
}

// openStore opens the store that the settings name. Those observers that are CommitObservers receive its
// transactions. failed is called with an error from which the store cannot recover.
func (s *Storage) openStore(
	ctx context.Context, c *config.Config, observers []Observer, failed func(error),
) (store.Store, error) {
	o := store.Options{
		Observe: s.committed, MaxMessages: c.MaxMessages, TTL: c.TTL, MaxConversationBytes: c.MaxConversationBytes,
		MaxRecordBytes: int64(c.MaxRecordBytes),
		Limits: func(tenant string) store.Limits {
			l := s.limits.Of(tenant)
			return store.Limits{
				MaxConversations: l.MaxConversations, MaxBytes: int64(l.MaxBytes), MaxRecordBytes: int64(l.MaxRecordBytes),
			}
		},
	}
	if c.Store == "memory" {
		s.log.Info("store opened", "store", c.Store, "durable", false)
		return memstore.New(o), nil
	}
	if c.Store == config.StoreRedis {
		return s.openRedis(ctx, c, o)
	}
	path := filepath.Join(c.DataDir, storeName)
	opened, err := boltstore.Open(path, boltstore.Options{
		Options: o, Check: checkAtStart(ctx, s.log), OnFailure: failed,
		JournalBudget: int64(c.JournalBudget), JournalAge: c.JournalAge, CacheBytes: c.CacheBytes - c.SummaryBytes(),
		OnCommit: func(commit store.Commit) {
			for _, o := range observers {
				if o, ok := o.(CommitObserver); ok {
					o.StoreCommit(commit)
				}
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.log.Info("store opened", "store", c.Store, "durable", true, "path", path)
	return opened, nil
}

// openRedis opens the store on Redis or Valkey. Without an address for others, only this server may use it.
func (s *Storage) openRedis(ctx context.Context, c *config.Config, o store.Options) (store.Store, error) {
	client, err := redisstore.ParseURL(c.Redis.URL, c.Redis.Access())
	if err != nil {
		return nil, settingsError("redis-url", err)
	}
	address, exclusive := c.Peers.AdvertiseAddress, c.Peers.AdvertiseAddress == ""
	if exclusive {
		address = c.GRPCAddress
		if host, err := os.Hostname(); err == nil {
			address += " on " + host
		}
	}
	opened, err := redisstore.Open(ctx, redisstore.Options{
		Options: o, Client: client, Prefix: c.Redis.Prefix, Buckets: c.Redis.Buckets, Spread: c.Redis.Spread,
		Replicated: c.Redis.Replicated(), Address: address, Exclusive: exclusive,
		Warn: func(text string) { s.log.WarnContext(ctx, "store warning", "warning", text) },
	})
	if err != nil {
		return nil, fmt.Errorf("store redis: %w", err)
	}
	s.log.InfoContext(ctx, "store opened", "store", c.Store, "durable", true, "addresses", client.InitAddress,
		"prefix", c.Redis.Prefix, "durability", c.Redis.Durability)
	return opened, nil
}
