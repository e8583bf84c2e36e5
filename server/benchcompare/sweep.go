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
	// quietTime is the minimum time in which appends are measured before anything expires.
	quietTime = 4 * time.Second
	// startMargin is the time for a start.
	startMargin = 3 * time.Second
	// sweepTime is the time limit of a sweep.
	sweepTime = 2 * time.Minute
	// countInterval is the time between two readings of the number of conversations.
	countInterval = 20 * time.Millisecond
)

// sweepAll measures, round by round, the 99th percentile of the time of appends: while nothing expires,
// and while many conversations are swept. The results are in seconds.
func (t *targets) sweepAll(ctx context.Context) (quiet, sweeping []float64, err error) {
	began := time.Now()
	dir, err := t.fillStore(ctx, "sweeping", t.conversations, messageBytes)
	if err != nil {
		return nil, nil, err
	}
	// Conversations expire after twice the estimated time to fill the store, plus the time for a start.
	filled := time.Since(began).Seconds() * float64(t.expired) / float64(t.conversations)
	lead := time.Duration(2*filled*float64(time.Second)) + quietTime + startMargin
	for round := 0; round < t.rounds; {
		start := time.Now()
		end := start.Add(lead)
		if err := fillFile(ctx, dir,
			fillOptions{first: t.conversations, count: t.expired, messageBytes: messageBytes, end: end}); err != nil {
			return nil, nil, err
		}
		if time.Until(end) < quietTime+startMargin-time.Second { // Filling was too slow. Repeat with more time.
			lead *= 2
			fmt.Fprintf(t.progress, "sweeping: %d conversations took %.1f s; repeating with more time\n", t.expired,
				time.Since(start).Seconds())
			if lead > ttl {
				return nil, nil, errors.New("disk is too slow for this measurement")
			}
			continue
		}
		q, s, err := t.sweep(ctx, dir, end)
		if err != nil {
			return nil, nil, err
		}
		quiet, sweeping = append(quiet, q.Seconds()), append(sweeping, s.Seconds())
		round++
		fmt.Fprintf(t.progress, "sweeping, round %d of %d: p99 %v, swept %v\n", round, t.rounds, q, s)
	}
	return quiet, sweeping, nil
}

// sweep starts the service on a store in which many conversations expire at the time end. Callers append
// to the other conversations until the expired ones are swept.
func (t *targets) sweep(ctx context.Context, dir string, end time.Time) (quiet, sweeping time.Duration, err error) {
	ctx, cancel := context.WithDeadline(ctx, end.Add(sweepTime))
	defer cancel()
	p, err := startParley(ctx, t.parleyd, dir, logOff()...)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var timed timings
	id, text := anyOf(t.conversations), message(messageBytes)
	callers := startCallers(ctx, maxCallers, func(ctx context.Context) error {
		start := time.Now()
		err := p.append(ctx, id(), text)
		timed.add(start, time.Since(start))
		return err
	})
	callers.wait(time.Second) // to warm up
	from := time.Now()
	first, last, err := p.watchSweep(ctx, int64(t.conversations))
	if err := errors.Join(err, callers.stop()); err != nil {
		return 0, 0, err
	}
	return timed.percentile(from, end, 99), timed.percentile(first, last, 99), nil
}

// watchSweep returns when the number of conversations started to fall, and when it reached left.
func (p *parley) watchSweep(ctx context.Context, left int64) (first, last time.Time, err error) {
	ticker := time.NewTicker(countInterval)
	defer ticker.Stop()
	before := int64(-1)
	for {
		stats, err := p.admin.GetStats(ctx, &parleyv1.GetStatsRequest{})
		if err != nil {
			return first, last, err
		}
		now := stats.GetConversationCount()
		if before >= 0 && now < before && first.IsZero() {
			first = time.Now().Add(-countInterval)
		}
		if before = now; now <= left {
			return first, time.Now(), nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return first, last, fmt.Errorf("sweep left %d conversations, want %d: %w", now, left, ctx.Err())
		}
	}
}

// timings are the durations of calls. The zero value has none.
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

// percentile returns the percentile of the calls that overlap the time between from and to.
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
