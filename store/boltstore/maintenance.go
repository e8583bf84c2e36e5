package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/backup"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/fsck"
)

// Backup implements store.Backuper. The copy is an unlinked file in the directory of the store.
func (s *Store) Backup(ctx context.Context) (*store.Backup, error) {
	if !s.backupRunning.CompareAndSwap(false, true) {
		return nil, store.ErrBackupRunning
	}
	file, size, err := backup.Snapshot(ctx, s.path, s.view)
	if err != nil {
		s.backupRunning.Store(false)
		return nil, fmt.Errorf("backup: %w", err)
	}
	return &store.Backup{
		ReadCloser: &backupReader{io.NewSectionReader(file, 0, size), file, &s.backupRunning}, Size: size,
	}, nil
}

// backupReader reads a copy. Its Close permits the next backup.
type backupReader struct {
	*io.SectionReader
	file    *os.File
	running interface{ Store(bool) }
}

// Close deletes the copy.
func (r *backupReader) Close() error {
	err := r.file.Close()
	if !errors.Is(err, os.ErrClosed) { // After the first Close, another backup may be running.
		r.running.Store(false)
	}
	return err
}

// Errors that Open, Check, CheckPages, Compact and Restore return in addition to those of the file system.
// Each is wrapped in one line that names the file, the cause, and what to do.
var (
	// ErrInUse means that another process has the file open.
	ErrInUse = boltfile.ErrInUse
	// ErrDamaged means that this package did not write the file, or that the file is no longer complete.
	ErrDamaged = boltfile.ErrDamaged
	// ErrSchema means that a version of Parley with another layout wrote the file.
	ErrSchema = boltfile.ErrSchema
	// ErrOwner means that the file belongs to another user than the process.
	ErrOwner = boltfile.ErrOwner
	// ErrExists means that the file that Restore should create exists.
	ErrExists = backup.ErrExists
)

// Checked is the result of a check.
type Checked = fsck.Checked

// CheckPages checks the pages of a store's file, see [fsck.CheckPages]. Run it in a process of its own,
// with a time limit.
func CheckPages(path string, report func(fault string)) (Checked, error) {
	return fsck.CheckPages(path, report)
}

// Check checks the pages and all records of a store's file, see [fsck.Check].
func Check(path string, report func(fault string)) (Checked, error) { return fsck.Check(path, report) }

// Compacted is the result of Compact.
type Compacted = backup.Compacted

// Compact rewrites the file at path without its free pages, see [backup.Compact].
func Compact(path string, checked func(path string) error) (Compacted, error) {
	return backup.Compact(path, checked)
}

// RestoreOptions configure Restore. The zero value is usable.
type RestoreOptions = backup.RestoreOptions

// Restored is the result of Restore.
type Restored = backup.Restored

// Restore puts a copy of a backup at path, where Open finds it, see [backup.Restore].
func Restore(ctx context.Context, source, path string, o RestoreOptions) (Restored, error) {
	return backup.Restore(ctx, source, path, o)
}
