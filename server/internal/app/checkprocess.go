package app

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
	// checkProcessName is the hidden command that a check process runs.
	checkProcessName = "check-process"
	pagesFlag        = "pages"
	// uncleanCheckLimit is how long a start waits for the check of a file, and cleanCheckLimit if
	// the file was closed in order. The limits suffice for some gigabytes in the page cache and for a
	// tenth of that on disk. The start continues if a larger file needs longer: bbolt survives a
	// killed process, and each record has a checksum.
	uncleanCheckLimit, cleanCheckLimit = 3 * time.Second, time.Second
	// maxStack ends the process if damaged pages form a cycle, which bbolt follows without end.
	maxStack = 64 << 20
	// maxReportedFaults is how many faults a check reports, each as a line.
	maxReportedFaults = 1000
	// exitCrashed is the exit code of a Go program that panics or accesses invalid memory.
	exitCrashed = 2
)

// checkProcessCommand is the command that runCheckProcess runs in a new process.
func checkProcessCommand() config.Offline {
	pages := false
	return config.Offline{
		Use:   checkProcessName + " FILE",
		Short: "Check a store's file; ends when standard input ends", Hidden: true,
		Args:  cobra.ExactArgs(1),
		Flags: func(flags *pflag.FlagSet) { flags.BoolVar(&pages, pagesFlag, false, "check only the pages") },
		Run: func(_ context.Context, call config.OfflineCall) error {
			out := call.Out
			go exitAtEOF(os.Stdin)
			debug.SetMaxStack(maxStack)
			check := boltstore.Check
			if pages {
				check = boltstore.CheckPages
			}
			faults := 0
			done, err := check(call.Args[0], func(fault string) {
				faults++
				if faults <= maxReportedFaults {
					fmt.Fprintln(out, fault)
				}
			})
			if faults > maxReportedFaults {
				fmt.Fprintf(out, "and %d more faults\n", faults-maxReportedFaults)
			}
			if done.Pages > 0 {
				fmt.Fprintf(out, "checked %s: %d bytes, %d pages, %d conversations, %d messages, %d records; %d faults\n",
					call.Args[0], done.Bytes, done.Pages, done.Conversations, done.Messages, done.Records, done.Faults)
			}
			return err
		},
	}
}

// runCheckProcess checks a store's file in a new process, because damage may crash the check or make
// it run forever. If pages is true, it checks only the pages. The faults are written to out.
// The error is boltstore.ErrDamaged, boltstore.ErrInUse, the error of ctx, or the reason why the
// check failed.
func runCheckProcess(ctx context.Context, path string, pages bool, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var stderr prefixBuffer
	process := exec.CommandContext(ctx, self, checkProcessName, fmt.Sprintf("--%s=%t", pagesFlag, pages), "--", path)
	// Env stays nil, so that the process inherits the environment: GOMEMLIMIT and similar variables
	// apply to it, too.
	process.Stdout, process.Stderr = out, &stderr
	if _, err := process.StdinPipe(); err != nil { // The kernel closes the pipe when this process ends, however it ends.
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
		return fmt.Errorf("store %s: check failed: %w", path, err)
	}
	message := strings.TrimSuffix(strings.TrimPrefix(stderr.String(), "parleyd: "), "\n")
	switch exit.ExitCode() {
	case exitDamaged:
		return &checkError{message, boltstore.ErrDamaged}
	case exitInUse:
		return &checkError{message, boltstore.ErrInUse}
	case exitIO:
		return &checkError{message, err}
	case exitCrashed:
		crash, _, _ := strings.Cut(message, "\n")
		return fmt.Errorf("store %s: %w: its pages crashed the check (%.200s): "+
			"restore a backup, or move the file away to start with an empty store", path, boltstore.ErrDamaged, crash)
	}
	return fmt.Errorf("store %s: check failed: %w", path, err)
}

// prefixBuffer keeps the first 4 KiB that are written to it. The first line identifies a crash.
type prefixBuffer struct{ bytes.Buffer }

// Write keeps the part of p that fits and discards the rest.
func (b *prefixBuffer) Write(p []byte) (int, error) {
	_, _ = b.Buffer.Write(p[:min(len(p), 4<<10-b.Len())])
	return len(p), nil
}

// checkError is the error that a check process reported.
type checkError struct {
	message string
	cause   error
}

// Error returns the message of the check process.
func (e *checkError) Error() string { return e.message }

// Unwrap returns the cause.
func (e *checkError) Unwrap() error { return e.cause }

// checkAtStart returns a function that checks the pages of a file before the store opens it. If the
// check does not end within its limit, the server starts nevertheless.
func checkAtStart(ctx context.Context, log *slog.Logger) func(path string, closed bool) error {
	return func(path string, closed bool) error {
		start, limit := time.Now(), uncleanCheckLimit
		if closed {
			limit = cleanCheckLimit
		}
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := runCheckProcess(limited, path, true, io.Discard)
		switch {
		case err == nil && closed:
			return nil
		case err == nil:
			log.Info("store was not closed in order; its pages are sound", "path", path, "duration", time.Since(start).String())
			return nil
		case ctx.Err() != nil, errors.Is(err, boltstore.ErrDamaged), errors.Is(err, boltstore.ErrInUse):
			return &checkError{strings.TrimPrefix(err.Error(), "store "+path+": "), err} // Open adds the same prefix.
		case closed:
			log.Info("store check not completed in time; run parleyd check while the server is stopped",
				"path", path, "limit", limit.String(), "error", err)
			return nil
		}
		log.Warn("store was not closed in order and its check not completed in time; "+
			"run parleyd check while the server is stopped",
			"path", path, "limit", limit.String(), "error", err)
		return nil
	}
}
