package main

import (
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

// storeName is the store's file in the data directory.
const storeName = "parley.db"

const aboutCheck = `Look at the store's file, or at FILE, which may be a backup, and change nothing: at every page, at
every record's checksum, and at whether all that leads to a conversation does. Each fault is a
line on standard output, with the conversation that it costs; the last line counts.

The exit code is 0 when all is well, 65 when something is damaged. No server may have the file
open.`

const aboutRestore = `Put a copy of BACKUP in the data directory, as a store that parleyd starts with. The copy is checked
as parleyd check does before it takes its place; unless it is sound, nothing changes.

A store that is there stays, unless --force moves it aside. No server may have it open.

Time goes on in a backup: a conversation whose ttl has run out since is not found once it is back.`

const aboutCompact = `Write the store's file anew without the room that nothing is in. Else that stays for what is to
come: the file never shrinks by itself. The new file is checked before it takes the old one's
place, so there must be room on the disk for both. No server may have the file open.`

// offlineCommands are those on the file of a server that does not run.
func offlineCommands() []config.Offline {
	return []config.Offline{checkCommand(), restoreCommand(), compactCommand(), examineCommand()}
}

func checkCommand() config.Offline {
	var limit time.Duration
	return config.Offline{
		Use: "check [FILE]", Short: "Look for damage in the store's file, or in a backup", Long: aboutCheck,
		Args:  cobra.MaximumNArgs(1),
		Flags: func(flags *pflag.FlagSet) { addLimit(flags, &limit) },
		Run: func(ctx context.Context, out io.Writer, dataDir string, args []string) error {
			path := filepath.Join(dataDir, storeName)
			if len(args) > 0 {
				path = args[0]
			}
			return examineWithin(ctx, limit, path, false, out)
		},
	}
}

func restoreCommand() config.Offline {
	var limit time.Duration
	var force bool
	return config.Offline{
		Use: "restore BACKUP", Short: "Put a backup in place of the store", Long: aboutRestore,
		Args: cobra.ExactArgs(1),
		Flags: func(flags *pflag.FlagSet) {
			addLimit(flags, &limit)
			flags.BoolVar(&force, "force", false, "move a store that is there aside")
		},
		Run: func(ctx context.Context, out io.Writer, dataDir string, args []string) error {
			path := filepath.Join(dataDir, storeName)
			done, err := boltstore.Restore(ctx, args[0], path, boltstore.RestoreOptions{
				Force: force,
				Check: func(copied string) error {
					err := examineWithin(ctx, limit, copied, false, out)
					if errors.Is(err, boltstore.ErrDamaged) {
						err = fmt.Errorf("%w: %s has the faults above: take another backup", boltstore.ErrDamaged, args[0])
					}
					return err
				},
			})
			if err != nil {
				return unchanged(ctx, err)
			}
			fmt.Fprintf(out, "restored %s: %d bytes\n", path, done.Bytes)
			if done.Aside != "" {
				fmt.Fprintf(out, "what was there before is %s\n", done.Aside)
			}
			return nil
		},
	}
}

func compactCommand() config.Offline {
	var limit time.Duration
	return config.Offline{
		Use: "compact", Short: "Make the store's file as small as it can be", Long: aboutCompact,
		Args:  cobra.NoArgs,
		Flags: func(flags *pflag.FlagSet) { addLimit(flags, &limit) },
		Run: func(ctx context.Context, out io.Writer, dataDir string, _ []string) error {
			path := filepath.Join(dataDir, storeName)
			if err := examineWithin(ctx, limit, path, true, io.Discard); err != nil {
				return unchanged(ctx, err)
			}
			done, err := boltstore.Compact(path, func(compacted string) error {
				err := examineWithin(ctx, limit, compacted, false, out)
				if errors.Is(err, boltstore.ErrDamaged) {
					err = fmt.Errorf("%w: it has the faults above: delete what they are of through a server, or restore a backup", boltstore.ErrDamaged)
				}
				return err
			})
			if err != nil {
				return unchanged(ctx, err)
			}
			fmt.Fprintf(out, "compacted %s: %d bytes before, %d now\n", path, done.Before, done.After)
			return nil
		},
	}
}

// unchanged is the error of a command that changes nothing when it is interrupted.
func unchanged(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted, nothing has changed: %w", err)
	}
	return err
}

func addLimit(flags *pflag.FlagSet, limit *time.Duration) {
	flags.DurationVar(limit, "timeout", 10*time.Minute, "how long a check may take; on a damaged file it may never end")
}

// examineWithin looks at a file for so long at most.
func examineWithin(ctx context.Context, limit time.Duration, path string, pages bool, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := examine(ctx, path, pages, out)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("store %s: %w, or large: the check did not end within %s; --timeout gives it longer", path, boltstore.ErrDamaged, limit)
	}
	return err
}
