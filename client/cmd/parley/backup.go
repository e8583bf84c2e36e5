package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutBackup = `Copy the server's store, the conversations of all tenants as they are at one instant, while
it serves. parleyd restore brings the copy back. What was said before, the interaction log,
is not in it.

FILE is written in full or not at all, for its owner's eyes only: until all of the copy has
come it is called FILE.partial. - is standard output; whoever reads it must look at the exit
code, which is 1 when the copy is not whole.`

// backupFlags are the flags of backup.
type backupFlags struct {
	force bool
	quiet bool
}

func (a *app) newBackupCommand() *cobra.Command {
	var f backupFlags
	command := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the server's store into a file",
		Long:  aboutBackup,
		Example: `  parley backup monday.db
  parley backup - | gzip > monday.db.gz`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if !a.timeoutSet {
				a.timeout = 0 // It takes as long as it takes.
			}
			return a.backup(command.Context(), args[0], f)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&f.force, "force", false, "replace FILE, and a FILE.partial that was left behind")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress and no size on standard error, only what goes wrong")
	return command
}

// backup writes a copy of the store to a file of that name, or to standard output.
func (a *app) backup(ctx context.Context, name string, f backupFlags) error {
	var written int64
	write := func(w io.Writer) error {
		return a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
			written, err = a.backupTo(ctx, c, w, f.quiet)
			return err
		})
	}
	var err error
	switch {
	case name != "-":
		err = writeNew(name, f.force, write)
	case a.outTerminal:
		return usageError("-: a copy of the store is not for a terminal; name a file, or send standard output elsewhere")
	default:
		err = write(a.out)
	}
	if err == nil && !f.quiet {
		fmt.Fprintf(a.err, "backed up %s\n", size(written))
	}
	return err
}

// backupTo writes a copy of the store to w and returns its size. What has come in less than
// full is an error.
func (a *app) backupTo(ctx context.Context, c *client.Client, w io.Writer, quiet bool) (written int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // The server is not to go on when w does not.
	stream, err := c.BackupStore(ctx, &parleyv1.BackupStoreRequest{})
	if err != nil {
		return 0, err
	}
	bar, shown := &progress{err: a.err}, a.errTerminal && !quiet
	defer func() { bar.clear() }()
	if shown {
		bar.show("waiting until the server has made its copy", -1)
	}
	whole := int64(-1) // The first piece tells.
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return written, err
		}
		if whole < 0 {
			whole = piece.GetSizeBytes()
			bar.clear()
			if shown {
				bar.show("backing up", whole, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
			}
		}
		n, err := w.Write(piece.GetChunk())
		written += int64(n)
		if err != nil {
			return written, err
		}
		bar.add(int64(n))
	}
	if written != whole || whole <= 0 {
		return written, fmt.Errorf("the copy is not whole: %d of %d bytes came", written, max(whole, 0))
	}
	return written, nil
}

// writeNew has write fill a new file of that name, with 0600, by way of one that is called
// .partial, of which nothing is left if write fails. An old file stays unless force is set, and
// also then if a server has it open.
func writeNew(name string, force bool, write func(io.Writer) error) (err error) {
	switch info, err := os.Lstat(name); {
	case name == "":
		return usageError("FILE is empty: name a file, or - for standard output")
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return usageError(fmt.Sprintf("%q: not a file; - is standard output", name))
	case !force:
		return usageError(fmt.Sprintf("%q: is there already; choose another name, or replace it with --force", name))
	default:
		old, err := lockReplaced(name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, old.Close()) }()
	}
	partial := name + ".partial"
	if force {
		if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usageError(fmt.Sprintf("%q: is there already: another backup is writing it, or was cut off, then remove it or use --force", partial))
	} else if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	own, statErr := file.Stat()
	err = errors.Join(err, statErr, file.Close())
	if there, statErr := os.Lstat(partial); err == nil && (statErr != nil || !os.SameFile(own, there)) {
		return fmt.Errorf("%q: another backup took its place: nothing was written to %q", partial, name)
	}
	if err == nil {
		err = os.Rename(partial, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	return syncDir(filepath.Dir(name))
}

// syncDir makes the names in a directory outlast a power cut.
func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
