package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// quietTime is how long appends are measured before anything expires, at least.
	quietTime = 4 * time.Second
	// startMargin is what a start may take.
	startMargin = 3 * time.Second
	// sweepTime is how long a sweep may take before something is wrong.
	sweepTime = 2 * time.Minute
	// countLook is how often the service is asked how many conversations it has.
	countLook = 20 * time.Millisecond
)

// sweepAll measures, a round after the other, the 99th percentile of the time that appends
// take while nothing expires, and while many conversations are swept; in seconds.
func (e *entrants) sweepAll(ctx context.Context) (quiet, sweeping []float64, err error) {
	began := time.Now()
	dir, err := e.fillStore(ctx, "sweeping", e.conversations, messageBytes)
	if err != nil {
		return nil, nil, err
	}
	// Twice what it is going to take to fill, and what a start takes.
	filled := time.Since(began).Seconds() * float64(e.expired) / float64(e.conversations)
	lead := time.Duration(2*filled*float64(time.Second)) + quietTime + startMargin
	for round := 0; round < e.rounds; {
		start := time.Now()
		end := start.Add(lead)
		if err := fillFile(ctx, dir, filling{first: e.conversations, count: e.expired, messageBytes: messageBytes, end: end}); err != nil {
			return nil, nil, err
		}
		if time.Until(end) < quietTime+startMargin-time.Second { // Too slow: with more time.
			lead *= 2
			fmt.Fprintf(e.progress, "sweeping: %d conversations took %.1f s, again with more time\n", e.expired, time.Since(start).Seconds())
			if lead > life {
				return nil, nil, errors.New("the disk is too slow for it")
			}
			continue
		}
		q, s, err := e.sweep(ctx, dir, end)
		if err != nil {
			return nil, nil, err
		}
		quiet, sweeping = append(quiet, q.Seconds()), append(sweeping, s.Seconds())
		round++
		fmt.Fprintf(e.progress, "sweeping, round %d of %d: p99 %v, swept %v\n", round, e.rounds, q, s)
	}
	return quiet, sweeping, nil
}

// sweep starts the service on a store in which many conversations end at that time, and has
// callers append to the others until the former are swept.
func (e *entrants) sweep(ctx context.Context, dir string, end time.Time) (quiet, sweeping time.Duration, err error) {
	ctx, cancel := context.WithDeadline(ctx, end.Add(sweepTime))
	defer cancel()
	p, err := startParley(ctx, e.parleyd, dir, logOff()...)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var timed timings
	id, text := anyOf(e.conversations), message(messageBytes)
	callers := startCallers(ctx, maxCallers, func(ctx context.Context) error {
		start := time.Now()
		err := p.append(ctx, id(), text)
		timed.add(start, time.Since(start))
		return err
	})
	callers.wait(time.Second) // to warm up
	from := time.Now()
	first, last, err := p.watchSweep(ctx, int64(e.conversations))
	if err := errors.Join(err, callers.stop()); err != nil {
		return 0, 0, err
	}
	return timed.percentile(from, end, 99), timed.percentile(first, last, 99), nil
}

// watchSweep returns when the count of conversations began to fall, and when only so many
// were left.
func (p *parley) watchSweep(ctx context.Context, left int64) (first, last time.Time, err error) {
	ticker := time.NewTicker(countLook)
	defer ticker.Stop()
	before := int64(-1)
	for {
		stats, err := p.admin.GetStats(ctx, &parleyv1.GetStatsRequest{})
		if err != nil {
			return first, last, err
		}
		now := stats.GetConversationCount()
		if before >= 0 && now < before && first.IsZero() {
			first = time.Now().Add(-countLook)
		}
		if before = now; now <= left {
			return first, time.Now(), nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return first, last, fmt.Errorf("%d conversations are left, not %d: %w", now, left, ctx.Err())
		}
	}
}

// timings are how long calls took. The zero value is of none.
type timings struct {
	mu  sync.Mutex
	all []timing
}

type timing struct {
	start time.Time
	took  time.Duration
}

func (t *timings) add(start time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, timing{start, took})
}

// percentile is of the calls that lie between two times as a whole or in part.
func (t *timings) percentile(from, to time.Time, p float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	var took []time.Duration
	for c := range slices.Values(t.all) {
		if c.start.Before(to) && c.start.Add(c.took).After(from) {
			took = append(took, c.took)
		}
	}
	return percentile(took, p)
}
