package redisstore

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// renewTime is the time between two renewals.
func (s *Store) renewTime() time.Duration { return s.leaseTime / 3 }

// renew takes or renews the leases of this process in all buckets.
func (s *Store) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.renewTime())
	defer cancel()
	all := make([]rueidis.LuaExec, len(s.buckets))
	for i, b := range s.buckets {
		all[i] = rueidis.LuaExec{
			Keys: []string{b.prefix + "ls"},
			Args: []string{b.prefix, s.server, s.address, strconv.FormatInt(s.leaseTime.Milliseconds(), 10)},
		}
	}
	var errs []error
	for _, reply := range s.scripts.lease.ExecMulti(ctx, s.client, all...) {
		if err := reply.Error(); err != nil {
			errs = append(errs, s.fault(err))
		}
	}
	return errors.Join(errs...)
}

// renewAll renews the leases until ctx ends.
func (s *Store) renewAll(ctx context.Context) {
	defer close(s.renewed)
	ticker := time.NewTicker(s.renewTime())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = s.renew(ctx) // A lease that cannot be renewed ends, unless the next renewal succeeds.
		}
	}
}

// endLeases ends the leases of this process.
func (s *Store) endLeases(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var commands []rueidis.Completed
	for _, b := range s.buckets {
		commands = append(commands, s.client.B().Zrem().Key(b.prefix+"ls").Member(s.server).Build(),
			s.client.B().Hdel().Key(b.prefix+"la").Field(s.server).Build())
	}
	var errs []error
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			errs = append(errs, s.fault(err))
		}
	}
	return errors.Join(errs...)
}

// leases returns the servers that have a lease in a bucket.
func (s *Store) leases(ctx context.Context, b bucket) (map[string]bool, error) {
	servers, err := s.scripts.leases.Exec(ctx, s.client, []string{b.prefix + "ls"}, []string{b.prefix}).AsStrSlice()
	if err != nil {
		return nil, s.fault(err)
	}
	live := make(map[string]bool, len(servers))
	for _, server := range servers {
		live[server] = true
	}
	return live, nil
}
