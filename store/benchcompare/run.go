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

// run sets everything up, measures, writes the table to output, and removes all that it has
// made; progress is told on the way. When ctx ends so does the run.
func run(ctx context.Context, s settings, output, progress io.Writer) (err error) {
	if s.parleyd, err = filepath.Abs(s.parleyd); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "benchcompare")
	if err != nil {
		return err
	}
	e := &entrants{settings: s, dir: dir, progress: progress}
	defer func() { err = errors.Join(err, e.close(), os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // Another user's server has a folder in it.
		return err
	}
	r := &report{settings: s, processors: runtime.GOMAXPROCS(0), memoryOf: memoryOf(), goVersion: runtime.Version()}
	// Memory holds the files of one of these at a time, not of all.
	for _, p := range []part{
		{e.openSizes, appendingSizes, readingSizes, e.measureSizes},
		{e.open, appending, reading, func(*report) error { return nil }},
	} {
		if err := e.measure(ctx, p, r); err != nil {
			return err
		}
	}
	var sweepErr error
	if s.expired > 0 {
		if r.quiet, r.sweeping, sweepErr = e.sweepAll(ctx); sweepErr != nil {
			sweepErr = fmt.Errorf("sweeping: %w", sweepErr)
		}
	}
	r.notes = e.notes
	return errors.Join(sweepErr, r.write(output))
}

// part is some of the entrants, which are measured together.
type part struct {
	open               func(context.Context) error
	appending, reading string // the operations
	after              func(*report) error
}

// measure opens a part, measures it, and closes it.
func (e *entrants) measure(ctx context.Context, p part, r *report) error {
	if !e.wantedIn(p) {
		return nil
	}
	start := time.Now()
	if err := errors.Join(p.open(ctx), ctx.Err()); err != nil {
		return err
	}
	// What was filled long ago, and copies, may be no longer there.
	if err := cache(ctx, e.dir); err != nil {
		return err
	}
	fmt.Fprintf(e.progress, "all are ready after %.0f s\n", time.Since(start).Seconds())
	all := e.contestants(p)
	if err := measureAll(ctx, all, e.rounds, e.slice, e.dir, e.progress); err != nil {
		return err
	}
	r.contestants = append(r.contestants, all...)
	r.entrants = append(r.entrants, e.all...)
	if err := p.after(r); err != nil {
		return err
	}
	e.all, e.ceiling = nil, nil
	return errors.Join(e.close(), removeAllIn(e.dir))
}

// removeAllIn empties a directory.
func removeAllIn(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	return err
}

// measureSizes adds to the report what is measured of the largest store besides calls.
func (e *entrants) measureSizes(r *report) error {
	memory, err := e.measureLarge()
	r.memory, r.starts, r.filled = float64(memory), e.starts, e.filled
	return err
}

// contestants are what is measured of all that take part.
func (e *entrants) contestants(p part) []*contestant {
	var all []*contestant
	add := func(operation, name string, callers int, call func(context.Context) error) {
		c := &contestant{operation: operation, name: name, callers: callers, call: call}
		if e.only.MatchString(c.String()) {
			all = append(all, c)
		}
	}
	text := message(messageBytes)
	for _, callers := range clientCounts() {
		for _, n := range e.all {
			if n.missing != nil {
				continue
			}
			id := anyOf(n.conversations)
			add(p.appending, n.name, callers, func(ctx context.Context) error { return n.system.append(ctx, id(), text) })
			add(p.reading, n.name, callers, readingFrom(n.system.read, id))
		}
		if e.ceiling == nil {
			continue
		}
		add(reading, bareRead, callers, readingFrom(e.ceiling.read, anyOf(e.conversations)))
		add(reading, bareCall, callers, e.ceiling.call)
		add(reading, chainedCall, callers, e.service.listAgents)
	}
	return all
}

// The operations.
const (
	appending      = "append"
	reading        = "read 20"
	appendingSizes = "append, by size"
	readingSizes   = "read 20, by size"
)

// readingFrom reads any conversation, which must have all messages.
func readingFrom(read func(context.Context, string) ([]string, error), id func() string) func(context.Context) error {
	return func(ctx context.Context) error {
		id := id()
		messages, err := read(ctx, id)
		if err == nil && len(messages) != keep {
			err = fmt.Errorf("conversation %s has %d messages", id, len(messages))
		}
		return err
	}
}
