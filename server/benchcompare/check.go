package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// check returns an error unless a system does what is measured. It must store the newest messages in
// order, lose no message of concurrent appends, and extend the expiry of the conversation at each append.
func check(ctx context.Context, s system) error {
	return errors.Join(
		checkLimit(ctx, s, "check-limit"),
		checkConcurrent(ctx, s, "check-all", 4, maxMessages/4),
		checkConcurrent(ctx, s, "check-newest", 8, maxMessages),
		checkExpiry(ctx, s, "check-expiry"),
	)
}

// checkID returns the id of a conversation that no other check and no measurement uses.
func checkID(name string) string {
	sum := uint32(2166136261)
	for _, b := range []byte(name) {
		sum = (sum ^ uint32(b)) * 16777619
	}
	return fmt.Sprintf("%08x-ffff-4000-8000-%012x", sum, sum)
}

// numbered returns the text of a writer's message with this number.
func numbered(writer, number int) string {
	text := fmt.Sprintf("writer %d message %d ", writer, number)
	return text + message(messageBytes-len(text))
}

// checkLimit appends messages one after the other, more than the limit.
func checkLimit(ctx context.Context, s system, name string) error {
	const excess = 7
	id := checkID(name)
	var want []string
	for i := range maxMessages + excess {
		if err := s.append(ctx, id, numbered(0, i)); err != nil {
			return fmt.Errorf("append: %w", err)
		}
		want = append(want, numbered(0, i))
		want = want[max(0, len(want)-maxMessages):]
		got, err := s.read(ctx, id)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("read after %d appends = %d messages, want the newest %d in order", i+1, len(got), len(want))
		}
	}
	return nil
}

// checkExpiry appends twice, with a pause, and checks the expiry after the second append.
func checkExpiry(ctx context.Context, s system, name string) error {
	const pause, precision = 3 * time.Second, 1500 * time.Millisecond // A lease of etcd has whole seconds.
	id := checkID(name)
	if err := s.append(ctx, id, numbered(0, 0)); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.append(ctx, id, numbered(0, 1)); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	left, err := s.remaining(ctx, id)
	if err != nil {
		return fmt.Errorf("read the expiry: %w", err)
	}
	if left < ttl-precision || left > ttl+precision {
		return fmt.Errorf("after an append, it expires in %v, want %v", left, ttl)
	}
	return nil
}

// checkConcurrent lets writers append to one conversation concurrently. The stored messages must be
// the newest of an order in which each writer's messages follow each other.
func checkConcurrent(ctx context.Context, s system, name string, writers, each int) error {
	id := checkID(name)
	group, groupCtx := errgroup.WithContext(ctx)
	for writer := range writers {
		group.Go(func() error {
			for i := range each {
				if err := s.append(groupCtx, id, numbered(writer, i)); err != nil {
					return fmt.Errorf("concurrent append: %w", err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	got, err := s.read(ctx, id)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if len(got) != maxMessages {
		return fmt.Errorf("read after %d concurrent appends = %d messages, want %d", writers*each, len(got), maxMessages)
	}
	// From the newest backward, the messages of each writer must be its last ones without gaps.
	next := slices.Repeat([]int{each - 1}, writers)
	for _, text := range slices.Backward(got) {
		var writer, number int
		if _, err := fmt.Sscanf(text, "writer %d message %d ", &writer, &number); err != nil || writer >= writers {
			return fmt.Errorf("read returns a message that was not written: %q", text)
		}
		if number != next[writer] || text != numbered(writer, number) {
			return fmt.Errorf("message %d of writer %d is in the place of its message %d", number, writer, next[writer])
		}
		next[writer]--
	}
	return nil
}
