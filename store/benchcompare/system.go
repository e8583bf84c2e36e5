package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// system is something that keeps conversations. Its methods but close may be called from
// many goroutines at once.
type system interface {
	// append adds a message to a conversation, drops all but the newest keep, and puts its
	// end off to a life from now. When it returns all that is durable. It makes the
	// conversation when there is none.
	append(ctx context.Context, id, message string) error
	// read returns the messages of a conversation that has not ended, oldest first.
	read(ctx context.Context, id string) ([]string, error)
	// remaining returns how long a conversation has until it ends.
	remaining(ctx context.Context, id string) (time.Duration, error)
	// fill makes the first n conversations, with keep messages each.
	fill(ctx context.Context, n int) error
	// close ends the system and its processes.
	close() error
}

// fillInSteps calls write for steps of at most size conversations, several at once.
func fillInSteps(ctx context.Context, n, size, atOnce int, write func(ctx context.Context, first, end int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for first := 0; first < n && ctx.Err() == nil; first += size {
		group.Go(func() error { return write(ctx, first, min(first+size, n)) })
	}
	return group.Wait()
}
