package redisstore

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// counters are counts since the store was opened.
type counters struct{ expired, evicted, corrupt atomic.Int64 }

// countRemovals counts what was removed.
func (s *Store) countRemovals(changes []store.Change) {
	for i := range changes {
		switch changes[i].Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
			s.counts.expired.Add(1)
		case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
			s.counts.evicted.Add(1)
		default:
		}
	}
}

// counted counts an error that is store.ErrCorrupt, and returns it. Each call of the store counts one at most.
func (s *Store) counted(err error) error {
	if errors.Is(err, store.ErrCorrupt) {
		s.counts.corrupt.Add(1)
	}
	return err
}

// Stats implements store.Store.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	if err := s.enter(ctx); err != nil {
		return store.Stats{}, err
	}
	defer s.leave()
	commands := make([]rueidis.Completed, len(s.buckets))
	for i, b := range s.buckets {
		commands[i] = s.countsCommand(b.prefix + "st")
	}
	var stats store.Stats
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		if err := addCounts(&stats, reply); err != nil {
			return store.Stats{}, s.fault(err)
		}
	}
	stats.Expired, stats.Evicted = s.counts.expired.Load(), s.counts.evicted.Load()
	stats.Corrupt = s.counts.corrupt.Load()
	return stats, nil
}

// countsCommand returns a command that reads conversations, messages, bytes, records and bytes of records.
func (s *Store) countsCommand(key string) rueidis.Completed {
	return s.client.B().Hmget().Key(key).Field("n", "m", "b", "r", "y").Build()
}

// addCounts adds the reply of a countsCommand.
func addCounts(stats *store.Stats, reply rueidis.RedisResult) error {
	f, err := reply.ToArray()
	if err != nil {
		return err
	}
	for i, to := range []*int64{
		&stats.Conversations, &stats.Messages, &stats.Bytes, &stats.Records, &stats.RecordBytes,
	} {
		*to += number(f[i])
	}
	return nil
}

// TenantStats implements store.Store.
func (s *Store) TenantStats(ctx context.Context, tenant string) (store.Stats, error) {
	if err := s.enter(ctx); err != nil {
		return store.Stats{}, err
	}
	defer s.leave()
	var commands []rueidis.Completed
	for _, p := range s.spaces(tenant) {
		commands = append(commands, s.countsCommand(p.key("t")))
	}
	var stats store.Stats
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		if err := addCounts(&stats, reply); err != nil {
			return store.Stats{}, s.fault(err)
		}
	}
	return stats, nil
}
