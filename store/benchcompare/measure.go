package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// hangTime is how much longer than its slice a contestant may take before it has failed.
const hangTime = 30 * time.Second

// contestant is a call whose speed is measured.
type contestant struct {
	operation string // what is done, the same for all that are compared
	name      string // by whom
	callers   int
	call      func(ctx context.Context) error
	rates     []float64 // a second, one of each round
}

func (c *contestant) String() string {
	return fmt.Sprintf("%s/%s/%d", c.operation, c.name, c.callers)
}

// measureAll lets all take turns, each for a slice in every round, after a round to warm up.
func measureAll(ctx context.Context, all []*contestant, rounds int, slice time.Duration, dir string, progress io.Writer) error {
	for round := range rounds + 1 {
		start := time.Now()
		for _, c := range order(all, round, rounds) {
			if err := settle(dir); err != nil {
				return err
			}
			rate, err := c.measure(ctx, slice)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			if round > 0 {
				c.rates = append(c.rates, rate)
			}
		}
		fmt.Fprintf(progress, "round %d of %d took %.0f s\n", round, rounds, time.Since(start).Seconds())
	}
	return nil
}

// settle brings what others have left to be done to an end: nobody pays for the one before.
func settle(dir string) error {
	runtime.GC()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// order lets each round begin with another contestant, and every other go backwards.
func order(all []*contestant, round, rounds int) []*contestant {
	first := round * len(all) / (rounds + 1)
	turns := slices.Concat(all[first:], all[:first])
	if round%2 == 1 {
		slices.Reverse(turns)
	}
	return turns
}

// measure lets the callers work, and returns what they got through in a second, counted
// while all of them were at work.
func (c *contestant) measure(ctx context.Context, slice time.Duration) (rate float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*slice+hangTime)
	defer cancel()
	var done atomic.Int64
	callers := startCallers(ctx, c.callers, func(ctx context.Context) error {
		err := c.call(ctx)
		done.Add(1)
		return err
	})
	callers.wait(slice / 4)
	before, start := done.Load(), time.Now()
	callers.wait(slice)
	n, took := done.Load()-before, time.Since(start)
	if err := errors.Join(callers.stop(), ctx.Err()); err != nil {
		return 0, err
	}
	return float64(n) / took.Seconds(), nil
}

// callers make a call over and over.
type callers struct {
	group   *errgroup.Group
	working context.Context //nolint:containedctx // Ends when a call fails, or the run.
	stopped atomic.Bool
}

func startCallers(ctx context.Context, n int, call func(context.Context) error) *callers {
	c := &callers{}
	c.group, c.working = errgroup.WithContext(ctx)
	for range n {
		c.group.Go(func() error {
			for !c.stopped.Load() {
				if err := call(c.working); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c
}

// wait waits for a while, or until a call has failed.
func (c *callers) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.working.Done():
	}
}

// stop lets the calls end that were begun, and returns what has failed.
func (c *callers) stop() error {
	c.stopped.Store(true)
	return c.group.Wait()
}
