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

const aboutBackup = `Copy the server's store while it serves: the conversations of all tenants at one instant. The
copy does not contain the interaction log. Restore a copy with parleyd restore.

FILE is written completely or not at all, with permissions for its owner only. Until the copy is
complete, the file is named FILE.partial. If FILE is -, the copy goes to standard output; it is
complete only if the exit code is 0.`

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
				a.timeout = 0 // The duration depends on the size of the store.
			}
			return a.backup(command.Context(), args[0], f)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&f.force, "force", false, "replace FILE, and a FILE.partial that an interrupted backup left")
	flags.BoolVar(&f.quiet, "quiet", false, "print only errors to standard error, no progress and no size")
	return command
}

// backup writes a copy of the store to the file name, or to standard output if name is "-".
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
		err = writeNewFile(name, f.force, write)
	case a.outTerminal:
		return usageError("-: the copy cannot be written to a terminal; name a file or redirect standard output")
	default:
		err = write(a.out)
	}
	if err == nil && !f.quiet {
		fmt.Fprintf(a.err, "backed up %s\n", size(written))
	}
	return err
}

// backupTo writes a copy of the store to w and returns its size. An incomplete copy is an error.
func (a *app) backupTo(ctx context.Context, c *client.Client, w io.Writer, quiet bool) (written int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // The server must stop if writing to w fails.
	stream, err := c.BackupStore(ctx, &parleyv1.BackupStoreRequest{})
	if err != nil {
		return 0, err
	}
	bar, shown := &progress{err: a.err}, a.errTerminal && !quiet
	defer func() { bar.clear() }()
	if shown {
		bar.show("waiting until the server has made its copy", -1)
	}
	total := int64(-1) // The first piece contains the size.
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return written, err
		}
		if total < 0 {
			total = piece.GetSizeBytes()
			bar.clear()
			if shown {
				bar.show("backing up", total, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
			}
		}
		n, err := w.Write(piece.GetChunk())
		written += int64(n)
		if err != nil {
			return written, err
		}
		bar.add(int64(n))
	}
	if written != total || total <= 0 {
		return written, fmt.Errorf("the copy is incomplete: %d of %d bytes received", written, max(total, 0))
	}
	return written, nil
}

// writeNewFile creates the file name with mode 0600 and the content that write writes. It writes to
// name.partial first and removes that file if write fails. An existing file is replaced only if force is
// set and no server has the file open.
func writeNewFile(name string, force bool, write func(io.Writer) error) (err error) {
	switch info, err := os.Lstat(name); {
	case name == "":
		return usageError("FILE is empty: name a file, or - for standard output")
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return usageError(fmt.Sprintf("%q: not a regular file; use - for standard output", name))
	case !force:
		return usageError(fmt.Sprintf("%q: already exists; choose another name, or replace it with --force", name))
	default:
		old, err := lockForReplacement(name)
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
		return usageError(fmt.Sprintf("%q: already exists: another backup is writing it, or an earlier one was "+
			"interrupted; in that case remove it or use --force", partial))
	} else if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	written, statErr := file.Stat()
	err = errors.Join(err, statErr, file.Close())
	if current, statErr := os.Lstat(partial); err == nil && (statErr != nil || !os.SameFile(written, current)) {
		return fmt.Errorf("%q was replaced by another backup; %q was not written", partial, name)
	}
	if err == nil {
		err = os.Rename(partial, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	return syncDir(filepath.Dir(name))
}

// syncDir syncs a directory, so that its file names survive a power failure.
func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
