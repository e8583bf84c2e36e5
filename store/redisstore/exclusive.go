package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrInUse means that another process uses the store, and that Options.Exclusive forbids that.
var ErrInUse = errors.New("another server uses the store")

// claimInterval is the time between two attempts to become the only process.
const claimInterval = 100 * time.Millisecond

// claim takes the lease of the first bucket, which each process has, when no other process has it. A process that was
// killed has it for at most one lease. claim waits for that and a little longer.
func (s *Store) claim(ctx context.Context) error {
	deadline := time.Now().Add(s.leaseTime + s.leaseTime/10)
	waits := false
	for {
		last := !time.Now().Before(deadline)
		holder, err := s.tryClaim(ctx)
		switch {
		case err != nil:
			return err
		case holder == "":
			return nil
		case last:
			return fmt.Errorf("%w %q: %s; stop it, or use another prefix", ErrInUse, s.prefix, holder)
		case !waits:
			waits = true
			s.warn(fmt.Sprintf("waits up to %v for the lease of %s to end: it was killed, or still runs", s.leaseTime, holder))
		}
		select {
		case <-time.After(min(claimInterval, s.leaseTime/10)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryClaim returns the process that has the lease. It is empty if this process has it now.
func (s *Store) tryClaim(ctx context.Context) (holder string, err error) {
	first := s.buckets[0].prefix
	reply, err := s.scripts.claim.Exec(ctx, s.client, []string{first + "ls"},
		[]string{first, s.server, s.address, strconv.FormatInt(s.leaseTime.Milliseconds(), 10)}).AsStrSlice()
	switch {
	case err != nil:
		return "", s.fault(err)
	case len(reply) < 2:
		return "", nil
	case reply[1] == "":
		return "server " + reply[0], nil
	}
	return fmt.Sprintf("server %s at %s", reply[0], reply[1]), nil
}
