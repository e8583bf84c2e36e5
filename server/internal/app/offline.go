package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/store/boltstore"
)

// storeName is the name of the store's file in the data directory.
const storeName = "parley.db"

const aboutCheck = `Check the store's file, or FILE, which may be a backup. The check covers every page, the checksum of
every record, and every index entry of a conversation. After a server was killed, the check also
covers its journal, which must be beside the file. It changes nothing. Each fault is a line on standard
output that names the affected conversation; the last line has the totals.

The exit code is 0 if there is no fault and 65 if the file is damaged. Stop the server that uses
the file before.`

const aboutRestore = `Copy BACKUP into the data directory as the store of parleyd. The copy is checked as by parleyd
check before it replaces the store. If the check finds a fault, nothing changes.

BACKUP may also be the parley.db of a stopped or killed server. After a kill, the journal must be
beside the file: a directory whose name starts with that of the file and ".journal-". The copy then
contains the appends in the journal.

An existing store is not replaced unless --force moves it aside, with its journal. Stop the server
that uses it before.

Conversations in a backup continue to expire: a conversation whose ttl has passed is not found after
the restore.`

const aboutCompact = `Rewrite the store's file without its free pages. Without this command the file never shrinks: the
store keeps free pages for later writes. After a server was killed, the command first folds the journal
into the file. The new file is checked before it replaces the old one, so the disk needs space for both.
Stop the server that uses the file before.`

// offlineCommands returns the commands besides the server.
func offlineCommands() []config.Offline {
	return []config.Offline{
		checkCommand(), restoreCommand(), compactCommand(), migrateCommand(), tokenCommand(), healthcheckCommand(),
		checkProcessCommand(),
	}
}

func checkCommand() config.Offline {
	var limit time.Duration
	return config.Offline{
		Use: "check [FILE]", Short: "Check the store's file, or a backup, for damage", Long: aboutCheck,
		Args:  cobra.MaximumNArgs(1),
		Flags: func(flags *pflag.FlagSet) { addLimit(flags, &limit) },
		Run: func(ctx context.Context, call config.OfflineCall) error {
			path := filepath.Join(call.Path, storeName)
			if len(call.Args) > 0 {
				path = call.Args[0]
			}
			return checkWithin(ctx, limit, path, false, call.Out)
		},
	}
}

func restoreCommand() config.Offline {
	var limit time.Duration
	var force bool
	return config.Offline{
		Use: "restore BACKUP", Short: "Replace the store with a backup", Long: aboutRestore,
		Args: cobra.ExactArgs(1),
		Flags: func(flags *pflag.FlagSet) {
			addLimit(flags, &limit)
			flags.BoolVar(&force, "force", false, "move an existing store aside")
		},
		Run: func(ctx context.Context, call config.OfflineCall) error {
			path := filepath.Join(call.Path, storeName)
			check := func(copied string, pages bool, out io.Writer) error {
				err := checkWithin(ctx, limit, copied, pages, out)
				if errors.Is(err, boltstore.ErrDamaged) {
					err = fmt.Errorf("%w: %s has the faults above: take another backup", boltstore.ErrDamaged, call.Args[0])
				}
				return err
			}
			done, err := boltstore.Restore(ctx, call.Args[0], path, boltstore.RestoreOptions{
				Force: force,
				Check: func(copied string) error { return check(copied, false, call.Out) },
				CheckPages: func(copied string) error {
					var faults bytes.Buffer // The complete check prints the totals.
					err := check(copied, true, &faults)
					if err != nil {
						_, _ = faults.WriteTo(call.Out)
					}
					return err
				},
			})
			if err != nil {
				return unchanged(ctx, err)
			}
			fmt.Fprintf(call.Out, "restored %s: %d bytes\n", path, done.Bytes)
			if done.Aside != "" {
				fmt.Fprintf(call.Out, "previous store moved to %s\n", done.Aside)
			}
			for _, dir := range done.AsideJournals {
				fmt.Fprintf(call.Out, "its journal moved to %s\n", dir)
			}
			return nil
		},
	}
}

func compactCommand() config.Offline {
	var limit time.Duration
	return config.Offline{
		Use: "compact", Short: "Remove free pages from the store's file", Long: aboutCompact,
		Args:  cobra.NoArgs,
		Flags: func(flags *pflag.FlagSet) { addLimit(flags, &limit) },
		Run: func(ctx context.Context, call config.OfflineCall) error {
			path := filepath.Join(call.Path, storeName)
			if err := checkWithin(ctx, limit, path, true, io.Discard); err != nil {
				return unchanged(ctx, err)
			}
			done, err := boltstore.Compact(path, func(compacted string) error {
				err := checkWithin(ctx, limit, compacted, false, call.Out)
				if errors.Is(err, boltstore.ErrDamaged) {
					err = fmt.Errorf("%w: it has the faults above: "+
						"delete the affected conversations through a server, or restore a backup", boltstore.ErrDamaged)
				}
				return err
			})
			if err != nil {
				return unchanged(ctx, err)
			}
			fmt.Fprintf(call.Out, "compacted %s: %d bytes before, %d now\n", path, done.Before, done.After)
			return nil
		},
	}
}

// unchanged returns err. If ctx has ended, it adds that the interrupted command changed nothing.
func unchanged(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted, nothing changed: %w", err)
	}
	return err
}

func addLimit(flags *pflag.FlagSet, limit *time.Duration) {
	flags.DurationVar(limit, "timeout", 10*time.Minute, "time limit of the check, which may never end on a damaged file")
}

// checkWithin runs runCheckProcess with a time limit.
func checkWithin(ctx context.Context, limit time.Duration, path string, pages bool, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := runCheckProcess(ctx, path, pages, out)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("store %s: %w, or too large to check within %s; raise --timeout", path, boltstore.ErrDamaged, limit)
	}
	return err
}
