// Command benchcompare compares the speed of this service with etcd, Redis, PostgreSQL and SQLite,
// which do the same work. `make bench-compare` runs it on Linux.
//
// A run has three steps:
//   - It starts every system on a free port of the loopback address, with its files in a temporary
//     directory. It fills each with the same conversations and checks that it does what is measured
//     (system.go, check.go).
//   - In every round each system works for a slice of time, in changing order. Systems are compared by
//     the ratios of slices in the same round, because the speed of a machine drifts (measure.go,
//     stats.go).
//   - It prints a table in Markdown that says which goals are met (goals.go, table.go).
//
// Each competitor has a file that says how it stores a conversation: etcd.go, redis.go, postgres.go,
// sqlite.go. This service is in parley.go, bolt.go and ceiling.go. Start at [run].
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

func main() {
	runtime.LockOSThread() // See startProcess.

	//nolint:forbidigo // This is main.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if len(os.Args) == 3 && os.Args[1] == serveCeiling {
		err = runCeiling(ctx, os.Args[2], os.Stdout)
	} else {
		err = runFlags(ctx)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "benchcompare:", err)
		os.Exit(1) //nolint:forbidigo // This is main.
	}
}

// maxRunTime is the time limit of a run. After ttl its first conversations would expire.
const maxRunTime = ttl - 2*time.Minute

// settings are the settings of a run.
type settings struct {
	parleyd                     string // path of the program
	dir                         string // parent of the temporary directory; the system's if empty
	rounds                      int
	slice                       time.Duration
	conversations, small, large int
	expired                     int
	only                        *regexp.Regexp // matches the names of measurements to make
	date                        string
}

func runFlags(ctx context.Context) error {
	var s settings
	flags := flag.NewFlagSet("benchcompare", flag.ContinueOnError)
	flags.StringVar(&s.parleyd, "parleyd", "", "`path` of the program of this service, required")
	flags.StringVar(&s.dir, "dir", os.TempDir(), "`directory` on the disk to measure, for a temporary directory")
	flags.IntVar(&s.rounds, "rounds", 5, "number of rounds, after one to warm up")
	flags.DurationVar(&s.slice, "slice", time.Second, "time of each measurement in a round")
	flags.IntVar(&s.conversations, "conversations", 100_000, "conversations of 20 messages in each system")
	flags.IntVar(&s.small, "small", 1000, "conversations of this service in the small size")
	flags.IntVar(&s.large, "large", 1_000_000, "conversations of this service in the large size")
	flags.IntVar(&s.expired, "expired", 100_000, "conversations that expire at once; 0 turns the measurement off")
	only := flags.String("only", "", "regular `expression` of the measurements to make, named operation/name/clients")
	flags.StringVar(&s.date, "date", time.Now().Format(time.DateOnly), "`date` in the table")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if s.parleyd == "" || flags.NArg() > 0 {
		return errors.New("-parleyd=PATH is required, and arguments are not allowed; see -help")
	}
	if s.rounds < 1 || s.slice <= 0 || min(s.conversations, s.small, s.large) < 1 || s.expired < 0 {
		return errors.New("rounds, slice and conversations must be positive, and expired must not be negative")
	}
	var err error
	if s.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if s.large == s.small || s.large == s.conversations || s.small == s.conversations {
		return errors.New("conversations, small and large must be different")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxRunTime,
		fmt.Errorf("the run took longer than %v; choose fewer rounds or conversations", maxRunTime))
	defer cancel()
	if err := run(ctx, s, os.Stdout, os.Stderr); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}
