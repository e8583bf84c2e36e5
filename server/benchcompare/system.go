package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// system is a store of conversations. All methods except close may be called concurrently.
type system interface {
	// append adds a message to a conversation, drops all but the newest maxMessages, and sets the expiry of
	// the conversation to ttl from now. The write is durable when append returns. If the conversation does
	// not exist, append creates it.
	append(ctx context.Context, id, message string) error
	// read returns the messages of a conversation that has not expired, oldest first.
	read(ctx context.Context, id string) ([]string, error)
	// remaining returns the time until a conversation expires.
	remaining(ctx context.Context, id string) (time.Duration, error)
	// fill creates the first n conversations with maxMessages messages each.
	fill(ctx context.Context, n int) error
	// close ends the system and its processes.
	close() error
}

// fillInSteps calls write for ranges of size conversations at most, atOnce of them concurrently.
func fillInSteps(
	ctx context.Context, n, size, atOnce int, write func(ctx context.Context, first, end int) error,
) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for first := 0; first < n && ctx.Err() == nil; first += size {
		group.Go(func() error { return write(ctx, first, min(first+size, n)) })
	}
	return group.Wait()
}
