package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parleyhq/parley/store"
)

// Backup implements store.Backuper. The copy is an unlinked file in the directory of the store.
func (s *Store) Backup(ctx context.Context) (*store.Backup, error) {
	if !s.backupRunning.CompareAndSwap(false, true) {
		return nil, store.ErrBackupRunning
	}
	file, size, err := snapshot(ctx, s.path, s.view)
	if err != nil {
		s.backupRunning.Store(false)
		return nil, fmt.Errorf("backup: %w", err)
	}
	return &store.Backup{ReadCloser: &backupReader{io.NewSectionReader(file, 0, size), file, &s.backupRunning}, Size: size}, nil
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
