// Command benchcompare measures this service beside what others would use to keep
// conversations: etcd, Redis, PostgreSQL and SQLite, all made to do the same. Begin with
// [run]; `make bench-compare` calls it.
//
// Every system is really started, on free ports of the loopback address and in a temporary
// folder, filled with the same conversations, and checked to do what is measured (system.go,
// check.go). Then all take turns: each works for a slice in every round, in an order that
// changes, and systems are compared by the ratios of slices in the same round, since the
// speed of a machine drifts (measure.go, stats.go). What came out is a table in Markdown
// that says which goals are met (goals.go, table.go).
//
// How each rival keeps a conversation stands in its own file: etcd.go, redis.go,
// postgres.go, sqlite.go; ours are parley.go, bolt.go and ceiling.go. It runs on Linux.
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
	runtime.LockOSThread()                                                                 // See startProcess.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // This is main.
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

// longest is how long a run may take: then the conversations that it began with would end.
const longest = life - 2*time.Minute

// settings of a run.
type settings struct {
	parleyd                     string // path of the program
	dir                         string // where the temporary folder is made; empty: the system's
	rounds                      int
	slice                       time.Duration
	conversations, small, large int
	expired                     int
	only                        *regexp.Regexp // names of contestants to measure
	date                        string
}

func runFlags(ctx context.Context) error {
	var s settings
	flags := flag.NewFlagSet("benchcompare", flag.ContinueOnError)
	flags.StringVar(&s.parleyd, "parleyd", "", "`path` of the program of this service, required")
	flags.StringVar(&s.dir, "dir", os.TempDir(), "`directory` on the disk to measure; a folder is made in it and removed")
	flags.IntVar(&s.rounds, "rounds", 5, "how often each has its turn, after a round to warm up")
	flags.DurationVar(&s.slice, "slice", time.Second, "how long a turn is")
	flags.IntVar(&s.conversations, "conversations", 100_000, "conversations of 20 messages in each system")
	flags.IntVar(&s.small, "small", 1000, "conversations where this service has few")
	flags.IntVar(&s.large, "large", 1_000_000, "conversations where this service has many")
	flags.IntVar(&s.expired, "expired", 100_000, "conversations that are swept at once; 0: that is not measured")
	only := flags.String("only", "", "regular `expression`: measures only those named so, as operation/name/clients")
	flags.StringVar(&s.date, "date", time.Now().Format(time.DateOnly), "`date` in the table")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if s.parleyd == "" || flags.NArg() > 0 {
		return errors.New("-parleyd=PATH is required, and nothing but flags; -help lists them")
	}
	if s.rounds < 1 || s.slice <= 0 || min(s.conversations, s.small, s.large) < 1 || s.expired < 0 {
		return errors.New("rounds, slice and conversations must be positive, expired not negative")
	}
	var err error
	if s.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if s.large == s.small || s.large == s.conversations || s.small == s.conversations {
		return errors.New("conversations, small and large must be three sizes")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the run took longer than %v: make it shorter", longest))
	defer cancel()
	if err := run(ctx, s, os.Stdout, os.Stderr); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}
