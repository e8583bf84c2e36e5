package store

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Backuper is implemented by stores that keep a file of their own and can copy it while they serve.
// A [Store] that does not implement it is backed up with the tools of the system that holds its
// data.
type Backuper interface {
	// Backup makes a copy of what is committed at one instant during the call. The copy contains
	// every write that returned before the call. For each write in it, it also contains all writes
	// that this write followed. Backup delays neither reads nor writes. When ctx ends, Backup
	// returns at once. Errors: ErrBackupRunning, a *BackupSpaceError, the error of ctx.
	Backup(ctx context.Context) (*Backup, error)
}

// Backup is a copy of a store. It occupies space on the store's disk until it is closed. A store
// has at most one open Backup.
type Backup struct {
	// ReadCloser reads the bytes of the copy. The caller must close it.
	io.ReadCloser
	// Size is the number of bytes of the copy.
	Size int64
}

// ErrBackupRunning is returned if another backup is being made or has not been closed.
var ErrBackupRunning = errors.New("another backup is running")

// BackupSpaceError is returned if the disk of the store has not enough space for a copy.
type BackupSpaceError struct {
	// Needed and Free are numbers of bytes.
	Needed, Free int64
}

// Error returns how many bytes are needed and how many are free.
func (e *BackupSpaceError) Error() string {
	return fmt.Sprintf("not enough disk space for a backup: it needs %d bytes on the disk of the store, %d are free",
		e.Needed, e.Free)
}
