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

// hangTime is how much longer than its slice a measurement may take before it fails.
const hangTime = 30 * time.Second

// measurement is a call whose speed is measured.
type measurement struct {
	operation string // what the call does; calls of the same operation are compared
	name      string // of the target
	callers   int
	// oneGoroutine says that one goroutine makes the calls of all callers.
	oneGoroutine bool
	call         func(ctx context.Context) error
	rates        []float64 // calls per second, one for each round
}

func (c *measurement) String() string {
	return fmt.Sprintf("%s/%s/%d", c.operation, c.name, c.callers)
}

// measureAll makes all measurements in every round, each for a slice of time, after a round to warm up.
func measureAll(
	ctx context.Context, all []*measurement, rounds int, slice time.Duration, dir string, progress io.Writer,
) error {
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

// settle completes work that earlier measurements have left, so that it does not affect the next one.
func settle(dir string) error {
	runtime.GC()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// order returns the order of a round. Each round starts with another measurement, and every other round
// is reversed.
func order(all []*measurement, round, rounds int) []*measurement {
	first := round * len(all) / (rounds + 1)
	ordered := slices.Concat(all[first:], all[:first])
	if round%2 == 1 {
		slices.Reverse(ordered)
	}
	return ordered
}

// measure returns the calls per second while all callers work.
func (c *measurement) measure(ctx context.Context, slice time.Duration) (rate float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*slice+hangTime)
	defer cancel()
	var done atomic.Int64
	goroutines := c.callers
	if c.oneGoroutine {
		goroutines = 1
	}
	callers := startCallers(ctx, goroutines, func(ctx context.Context) error {
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

// callers are goroutines that make a call repeatedly.
type callers struct {
	group   *errgroup.Group
	working context.Context //nolint:containedctx // It ends when a call fails, or with the run.
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

// wait waits for d, or until a call has failed.
func (c *callers) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.working.Done():
	}
}

// stop waits for running calls to end and returns the first error.
func (c *callers) stop() error {
	c.stopped.Store(true)
	return c.group.Wait()
}
