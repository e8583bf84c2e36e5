package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// check tells whether a system does what is going to be measured: it keeps the newest
// messages in order, loses none of those that are appended at once, and puts the end of the
// conversation off. Nothing is measured of one that does not.
func check(ctx context.Context, s system) error {
	return errors.Join(
		checkKeeps(ctx, s, "check-keeps"),
		checkConcurrent(ctx, s, "check-all", 4, keep/4),
		checkConcurrent(ctx, s, "check-newest", 8, keep),
		checkEnd(ctx, s, "check-end"),
	)
}

// checkID is a conversation that no other check and no measurement uses.
func checkID(name string) string {
	sum := uint32(2166136261)
	for _, b := range []byte(name) {
		sum = (sum ^ uint32(b)) * 16777619
	}
	return fmt.Sprintf("%08x-ffff-4000-8000-%012x", sum, sum)
}

// numbered is the message of a number from a writer.
func numbered(writer, number int) string {
	text := fmt.Sprintf("writer %d message %d ", writer, number)
	return text + message(messageBytes-len(text))
}

// checkKeeps appends one message after the other.
func checkKeeps(ctx context.Context, s system, name string) error {
	const beyond = 7
	id := checkID(name)
	var want []string
	for i := range keep + beyond {
		if err := s.append(ctx, id, numbered(0, i)); err != nil {
			return fmt.Errorf("append: %w", err)
		}
		want = append(want, numbered(0, i))
		want = want[max(0, len(want)-keep):]
		got, err := s.read(ctx, id)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("after %d appends it has %d messages, which are not the newest %d in order", i+1, len(got), len(want))
		}
	}
	return nil
}

// checkEnd appends twice, with some time between.
func checkEnd(ctx context.Context, s system, name string) error {
	const between, precision = 3 * time.Second, 1500 * time.Millisecond // A lease has whole seconds.
	id := checkID(name)
	if err := s.append(ctx, id, numbered(0, 0)); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	timer := time.NewTimer(between)
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
		return fmt.Errorf("read when it ends: %w", err)
	}
	if left < life-precision || left > life+precision {
		return fmt.Errorf("after an append it ends in %v, not in %v", left, life)
	}
	return nil
}

// checkConcurrent has writers append to one conversation at once. What is kept then must be
// the newest of some order in which each writer's messages follow each other.
func checkConcurrent(ctx context.Context, s system, name string, writers, each int) error {
	id := checkID(name)
	group, groupCtx := errgroup.WithContext(ctx)
	for writer := range writers {
		group.Go(func() error {
			for i := range each {
				if err := s.append(groupCtx, id, numbered(writer, i)); err != nil {
					return fmt.Errorf("append at once with others: %w", err)
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
	if len(got) != keep {
		return fmt.Errorf("after %d appends at once it has %d messages, not %d", writers*each, len(got), keep)
	}
	// From the newest back, each writer's are its last, one after the other.
	next := slices.Repeat([]int{each - 1}, writers)
	for _, text := range slices.Backward(got) {
		var writer, number int
		if _, err := fmt.Sscanf(text, "writer %d message %d ", &writer, &number); err != nil || writer >= writers {
			return fmt.Errorf("a message that nobody wrote: %q", text)
		}
		if number != next[writer] || text != numbered(writer, number) {
			return fmt.Errorf("message %d of writer %d is where its message %d belongs", number, writer, next[writer])
		}
		next[writer]--
	}
	return nil
}
