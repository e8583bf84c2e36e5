package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/store/boltstore"
)

const (
	examineName = "examine" // of the command that a process is started with to look at a file
	pagesFlag   = "pages"
	// startCheckLimit is how long a start waits until the file was looked at, and
	// closedCheckLimit if it was closed in order. That is time for some gigabytes that are in
	// memory, for a tenth of that on the disk; with more to look at the start goes on, for bbolt outlives a process that is killed, and each record
	// has a checksum besides.
	startCheckLimit, closedCheckLimit = 3 * time.Second, time.Second
	// maxStack is for pages that lead in a circle, in which bbolt goes round for ever.
	maxStack = 64 << 20
	// maxTold is how many faults are told of, each by a line.
	maxTold = 1000
	// exitCrashed is how a Go program ends that panics or meets memory that is not there.
	exitCrashed = 2
)

// examineCommand is what examine runs.
func examineCommand() config.Offline {
	pages := false
	return config.Offline{
		Use:   examineName + " FILE",
		Short: "Look at a store's file; ends with standard input", Hidden: true,
		Args:  cobra.ExactArgs(1),
		Flags: func(flags *pflag.FlagSet) { flags.BoolVar(&pages, pagesFlag, false, "look at nothing but the pages") },
		Run: func(_ context.Context, out io.Writer, _ string, args []string) error {
			go exitWith(os.Stdin)
			debug.SetMaxStack(maxStack)
			look := boltstore.Check
			if pages {
				look = boltstore.CheckPages
			}
			told := 0
			done, err := look(args[0], func(fault string) {
				told++
				if told <= maxTold {
					fmt.Fprintln(out, fault)
				}
			})
			if told > maxTold {
				fmt.Fprintf(out, "and %d faults more\n", told-maxTold)
			}
			if done.Pages > 0 {
				fmt.Fprintf(out, "checked %s: %d bytes, %d pages, %d conversations, %d messages; %d faults\n",
					args[0], done.Bytes, done.Pages, done.Conversations, done.Messages, done.Faults)
			}
			return err
		},
	}
}

// examine looks at a store's file, with pages at nothing but its pages, in a process of its
// own, which damage may crash or keep from ever ending. What that finds goes to out. The
// error is boltstore.ErrDamaged, or ErrInUse, or that of ctx, or says why nothing was found out.
func examine(ctx context.Context, path string, pages bool, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var stderr firstBytes
	process := exec.CommandContext(ctx, self, examineName, fmt.Sprintf("--%s=%t", pagesFlag, pages), "--", path)
	// Env is left nil, all of the environment: it is the same program, to which GOMEMLIMIT and the
	// like apply as well.
	process.Stdout, process.Stderr = out, &stderr
	if _, err := process.StdinPipe(); err != nil { // It is closed when this process ends, however it does.
		return err
	}
	err = process.Run()
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("store %s: %w", path, ctx.Err())
	case !ended:
		return fmt.Errorf("store %s: it could not be looked at: %w", path, err)
	}
	said := strings.TrimSuffix(strings.TrimPrefix(stderr.String(), "parleyd: "), "\n")
	switch exit.ExitCode() {
	case exitDamaged:
		return &foundError{said, boltstore.ErrDamaged}
	case exitInUse:
		return &foundError{said, boltstore.ErrInUse}
	case exitIO:
		return &foundError{said, err}
	case exitCrashed:
		crash, _, _ := strings.Cut(said, "\n")
		return fmt.Errorf("store %s: %w: its pages make no sense (%.200s): restore a backup, or move the file away to begin anew",
			path, boltstore.ErrDamaged, crash)
	}
	return fmt.Errorf("store %s: it could not be looked at: %w", path, err)
}

// firstBytes keeps the first of what is written: a crash can be told by its first line.
type firstBytes struct{ bytes.Buffer }

// Write keeps what there is room for.
func (f *firstBytes) Write(p []byte) (int, error) {
	_, _ = f.Buffer.Write(p[:min(len(p), 4<<10-f.Len())])
	return len(p), nil
}

// foundError is an error of a process that looked at a file.
type foundError struct {
	text  string
	cause error
}

// Error is what that process said.
func (e *foundError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *foundError) Unwrap() error { return e.cause }

// checkAtStart looks at the pages of a file ahead of opening it. What it cannot find out within
// its time is no reason not to start.
func checkAtStart(ctx context.Context, log *slog.Logger) func(path string, closed bool) error {
	return func(path string, closed bool) error {
		start, limit := time.Now(), startCheckLimit
		if closed {
			limit = closedCheckLimit
		}
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := examine(limited, path, true, io.Discard)
		switch {
		case err == nil && closed:
			return nil
		case err == nil:
			log.Info("store was not closed in order; its pages are sound", "path", path, "duration", time.Since(start).String())
			return nil
		case ctx.Err() != nil, errors.Is(err, boltstore.ErrDamaged), errors.Is(err, boltstore.ErrInUse):
			return &foundError{strings.TrimPrefix(err.Error(), "store "+path+": "), err} // Open says it, too.
		case closed:
			log.Info("store could not be checked in time; look at it with parleyd check when the server does not run",
				"path", path, "limit", limit.String(), "error", err)
			return nil
		}
		log.Warn("store was not closed in order and could not be checked in time; look at it with parleyd check when the server does not run",
			"path", path, "limit", limit.String(), "error", err)
		return nil
	}
}
