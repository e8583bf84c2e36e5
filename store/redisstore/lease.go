package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
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
	for i, reply := range s.scripts.lease.ExecMulti(ctx, s.client, all...) {
		hadLease, err := reply.AsInt64()
		if err != nil {
			errs = append(errs, s.fault(err))
		}
		s.judges.renewed(i, hadLease == 1, err, s.leaseTime)
	}
	return joined(errs)
}

// judges decides for each bucket whether a lease that has ended shows that its server has ended. It does not if the
// engine could not be reached for some time, or its clock was set: then the leases of all servers have ended, and the
// first server that can renew its own would end the turns and the holds of the others. It waits for one lease after
// that, so that each server that lives has renewed its lease.
type judges struct {
	mu  sync.Mutex
	all []judge // by bucket
}

// judge is the state of the lease of this process in a bucket.
type judge struct {
	renewed time.Time // last renewal; zero before the first one
	missed  bool      // whether the last renewal has failed
	from    time.Time // when leases can be judged again
}

// renewed records a renewal. hadLease reports whether the lease had not ended before.
func (j *judges) renewed(bucket int, hadLease bool, err error, lease time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.all) <= bucket {
		j.all = append(j.all, judge{})
	}
	of := &j.all[bucket]
	if err != nil {
		of.missed = true
		return
	}
	now := time.Now()
	if !of.renewed.IsZero() && (of.missed || !hadLease || !of.isRecent(now, lease)) {
		of.from = now.Add(lease)
	}
	of.renewed, of.missed = now, false
}

// isRecent reports whether the last renewal is so recent that no lease can have ended because the engine could not be
// reached: a lease lasts for three renewals.
func (j *judge) isRecent(now time.Time, lease time.Duration) bool {
	return now.Sub(j.renewed) <= 2*(lease/3)
}

// may reports whether the leases of a bucket can be judged now.
func (j *judges) may(bucket int, lease time.Duration) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if bucket >= len(j.all) {
		return false
	}
	of, now := &j.all[bucket], time.Now()
	return !of.missed && of.isRecent(now, lease) && !now.Before(of.from)
}

// errNotJudged means that it is not known whether servers without a lease have ended.
var errNotJudged = errors.New("the leases are not judged yet")

// judgedLeases returns the servers that have a lease in a bucket. All others have ended. The error is errNotJudged if
// that is not known.
func (s *Store) judgedLeases(ctx context.Context, b bucket) (map[string]bool, error) {
	live, err := s.leases(ctx, b)
	if err != nil {
		return nil, err
	}
	if !live[s.server] || !s.judges.may(b.index, s.leaseTime) {
		return nil, errNotJudged
	}
	return live, nil
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
