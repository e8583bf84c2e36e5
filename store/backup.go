package store

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Backuper is what a store can do besides that keeps a file of its own: be copied while it
// serves. A [Store] that is none is copied by whatever keeps its data.
type Backuper interface {
	// Backup makes a copy of what is committed at one instant within the call: every write
	// that returned before the call is in it, and for each write in it all those that it
	// followed. It holds up neither reads nor writes. Errors: ErrBackupRunning, a
	// *BackupSpaceError, that of ctx, whose end ends the call at once.
	Backup(ctx context.Context) (*Backup, error)
}

// Backup is a copy of a store. It lies on the store's disk until it is closed, and as long
// there is no other.
type Backup struct {
	// ReadCloser gives the bytes of the copy, and must be closed.
	io.ReadCloser
	// Size is how many bytes there are.
	Size int64
}

// ErrBackupRunning says that another backup is being made, or has not been closed.
var ErrBackupRunning = errors.New("another backup is under way")

// BackupSpaceError says that there is no room on the disk of the store for a copy of it.
type BackupSpaceError struct {
	// Needed and Free bytes.
	Needed, Free int64
}

// Error says how much is missing.
func (e *BackupSpaceError) Error() string {
	return fmt.Sprintf("no room for a copy: it needs %d bytes on the disk of the store, and %d are free", e.Needed, e.Free)
}
