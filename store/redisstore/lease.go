package redisstore

import (
	"context"
	"fmt"
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
			Args: []string{b.prefix, s.server, s.entry(), strconv.FormatInt(s.leaseTime.Milliseconds(), 10)},
		}
	}
	var errs []error
	for _, reply := range s.scripts.lease.ExecMulti(ctx, s.client, all...) {
		if err := reply.Error(); err != nil {
			errs = append(errs, s.fault(err))
		}
	}
	return joined(errs)
}

// joined returns an error for those of several buckets, in one line: the first, and how many there are.
func joined(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (in one bucket; %d others have failed, too)", errs[0], len(errs)-1)
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
			s.client.B().Hdel().Key(b.prefix+"la").Field(s.server).Build(),
			s.client.B().Unlink().Key(b.prefix+"hc:"+s.server).Build())
	}
	var errs []error
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			errs = append(errs, s.fault(err))
		}
	}
	return joined(errs)
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
