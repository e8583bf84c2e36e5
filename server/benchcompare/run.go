package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// run starts all systems, measures, writes the table to output, and removes all files. It reports
// progress to progress. When ctx ends, so does the run.
func run(ctx context.Context, s settings, output, progress io.Writer) (err error) {
	if s.parleyd, err = filepath.Abs(s.parleyd); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "benchcompare")
	if err != nil {
		return err
	}
	t := &targets{settings: s, dir: dir, progress: progress}
	defer func() { err = errors.Join(err, t.close(), os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // A server of another user has its directory in it.
		return err
	}
	r := &report{
		settings: s, processors: runtime.GOMAXPROCS(0), machineMemory: machineMemory(), goVersion: runtime.Version(),
	}
	// The parts run one after the other, because the page cache cannot hold the files of both.
	for _, p := range []part{
		{t.openSizes, appendingSizes, readingSizes, t.measureSizes},
		{t.open, appending, reading, func(*report) error { return nil }},
	} {
		if err := t.measure(ctx, p, r); err != nil {
			return err
		}
	}
	var sweepErr error
	if s.expired > 0 {
		if r.quiet, r.sweeping, sweepErr = t.sweepAll(ctx); sweepErr != nil {
			sweepErr = fmt.Errorf("sweeping: %w", sweepErr)
		}
	}
	r.notes = t.notes
	return errors.Join(sweepErr, r.write(output))
}

// part is a group of targets that are measured together.
type part struct {
	open               func(context.Context) error
	appending, reading string // names of the operations
	after              func(*report) error
}

// measure opens the targets of a part, measures them, and closes them.
func (t *targets) measure(ctx context.Context, p part, r *report) error {
	if !t.wantedIn(p) {
		return nil
	}
	start := time.Now()
	if err := errors.Join(p.open(ctx), ctx.Err()); err != nil {
		return err
	}
	// The page cache may have lost files that were filled early, and copies.
	if err := cache(ctx, t.dir); err != nil {
		return err
	}
	fmt.Fprintf(t.progress, "all targets are ready after %.0f s\n", time.Since(start).Seconds())
	all := t.measurements(p)
	if err := measureAll(ctx, all, t.rounds, t.slice, t.dir, t.progress); err != nil {
		return err
	}
	r.measurements = append(r.measurements, all...)
	r.targets = append(r.targets, t.all...)
	if err := p.after(r); err != nil {
		return err
	}
	t.all, t.ceiling, t.stream = nil, nil, nil
	return errors.Join(t.close(), removeAllIn(t.dir))
}

// removeAllIn removes the files of a directory.
func removeAllIn(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	return err
}

// measureSizes adds the values of the largest store to the report.
func (t *targets) measureSizes(r *report) error {
	memory, err := t.measureLarge()
	r.memory, r.starts, r.filled = float64(memory), t.starts, t.filled
	return err
}

// measurements returns the wanted measurements of a part.
func (t *targets) measurements(p part) []*measurement {
	var all []*measurement
	add := func(operation, name string, callers int, call func(context.Context) error) {
		c := &measurement{operation: operation, name: name, callers: callers, call: call, oneGoroutine: name == serviceStream}
		if t.only.MatchString(c.String()) {
			all = append(all, c)
		}
	}
	text := message(messageBytes)
	for _, callers := range clientCounts() {
		for _, n := range t.all {
			if n.missing != nil {
				continue
			}
			id := anyOf(n.conversations)
			add(p.appending, n.name, callers, func(ctx context.Context) error { return n.system.append(ctx, id(), text) })
			add(p.reading, n.name, callers, readingFrom(n.system.read, id))
		}
		if t.ceiling == nil {
			continue
		}
		id := anyOf(t.conversations)
		if callers == maxCallers {
			add(appending, serviceStream, callers, func(context.Context) error { return t.stream.append(id(), text) })
		}
		add(appending, constantCall, callers, func(ctx context.Context) error { return t.ceiling.append(ctx, text) })
		add(reading, constantCall, callers, readingFrom(t.ceiling.read, func() string { return constantID }))
		add(reading, plainRead, callers, readingFrom(t.ceiling.read, id))
		add(reading, plainCall, callers, t.ceiling.call)
		add(reading, chainedCall, callers, t.service.listAgents)
	}
	return all
}

// Names of the operations.
const (
	appending      = "append"
	reading        = "read 20"
	appendingSizes = "append, by size"
	readingSizes   = "read 20, by size"
)

// readingFrom returns a call that reads a random conversation, which must have all messages.
func readingFrom(read func(context.Context, string) ([]string, error), id func() string) func(context.Context) error {
	return func(ctx context.Context) error {
		id := id()
		messages, err := read(ctx, id)
		if err == nil && len(messages) != maxMessages {
			err = fmt.Errorf("read(%s) = %d messages, want %d", id, len(messages), maxMessages)
		}
		return err
	}
}
