package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrInUse means that another process uses the store in a way that Options.Exclusive or Options.Address forbids.
var ErrInUse = errors.New("another server uses the store")

// claimInterval is the time between two attempts to claim the store.
const claimInterval = 100 * time.Millisecond

// claim takes the lease of the first bucket, which each process has, when no other process has it that forbids this
// one: any, if one of the two is exclusive, or one with the same address. A process that was killed has it for at most
// one lease. claim waits for that and a little longer.
func (s *Store) claim(ctx context.Context, exclusive bool) error {
	deadline := time.Now().Add(s.leaseTime + s.leaseTime/10)
	waits := false
	for {
		last := !time.Now().Before(deadline)
		holder, remedy, err := s.tryClaim(ctx, exclusive)
		switch {
		case err != nil:
			return err
		case holder == "":
			return nil
		case last:
			return fmt.Errorf("%w %q: %s; %s", ErrInUse, s.prefix, holder, remedy)
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

// tryClaim returns the process that has the lease, and what to do. holder is empty if this process has it now.
func (s *Store) tryClaim(ctx context.Context, exclusive bool) (holder, remedy string, err error) {
	first, mode := s.buckets[0].prefix, "shared"
	if exclusive {
		mode = "exclusive"
	}
	reply, err := s.scripts.claim.Exec(ctx, s.client, []string{first + "ls"}, []string{
		first, s.server, s.self.Key, s.self.Address, strconv.FormatInt(s.leaseTime.Milliseconds(), 10), mode,
	}).AsStrSlice()
	switch {
	case err != nil:
		return "", "", s.fault(err)
	case len(reply) < 2:
		return "", "", nil
	}
	key, address, _ := strings.Cut(reply[1], " ")
	holder, remedy = "server "+reply[0], "stop it, use another prefix, or start each with --advertise-address"
	if address != "" {
		holder += " at " + address
	}
	if !exclusive && key != exclusiveKey {
		remedy = "choose another address, or stop that server"
	}
	return holder, remedy, nil
}
