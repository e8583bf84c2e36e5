package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
)

const (
	// backupSuffix makes the name of a copy, which it bears for an instant only. Nobody else is to
	// choose it, for what bears it is removed.
	backupSuffix = ".unfinished-backup"
	// backupStep is how much of a copy is on its way to the disk at once. A commit that
	// meets it there waits for so much.
	backupStep = 1 << 20
	// backupBlock is how much is written where a byte differs.
	backupBlock = 16 << 10
	// backupReserve is what a backup leaves free on the disk for what is written meanwhile; of a
	// small disk one byte in reservePart.
	backupReserve = 64 << 20
)

// Backup implements store.Backuper. The copy is a file without a name beside the store's.
//
// A read transaction that lasted as long as it takes to write a copy would let the file grow,
// since no page that is replaced meanwhile could be used anew, and each growth waits for the
// disk to have all that is on its way there. So the file is first copied outside of any
// transaction, while it changes, at a pace that leaves the disk to others half of the time.
// What came of that is no database. Then a transaction goes over it and puts right what
// differs: that is mostly reading.
func (s *Store) Backup(ctx context.Context) (*store.Backup, error) {
	if !s.backupRunning.CompareAndSwap(false, true) {
		return nil, store.ErrBackupRunning
	}
	b, err := s.makeBackup(ctx)
	if err != nil {
		s.backupRunning.Store(false)
		return nil, fmt.Errorf("backup: %w", err)
	}
	return b, nil
}

func (s *Store) makeBackup(ctx context.Context) (_ *store.Backup, err error) {
	var size int64 // up to the last page that was ever used
	if err := s.view(ctx, func(tx *bolt.Tx) error {
		size = tx.Size()
		return nil
	}); err != nil {
		return nil, err
	}
	free, disk, err := diskSpace(s.path)
	if err != nil {
		return nil, err
	}
	noSpace := &store.BackupSpaceError{Needed: size + min(backupReserve, disk/reservePart), Free: free}
	if free < noSpace.Needed {
		return nil, noSpace
	}
	file, err := createUnlinked(s.path + backupSuffix)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && isFull(err) { // Somebody else has filled the disk.
			noSpace.Free, _, _ = diskSpace(s.path)
			noSpace.Free = min(noSpace.Free, noSpace.Needed-1) // It may have room again.
			err = noSpace
		}
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	if err := preallocate(file, size); err != nil {
		return nil, err
	}
	c := &copier{ctx: ctx, file: file, current: make([]byte, backupStep), fresh: make([]byte, backupStep)}
	if err := c.copyPaced(s.path, size); err != nil {
		return nil, err
	}
	if err := s.view(ctx, func(tx *bolt.Tx) error {
		c.at = 0
		size, err = tx.WriteTo(c)
		return err
	}); err != nil {
		return nil, err
	}
	return &store.Backup{ReadCloser: &backupReader{io.NewSectionReader(file, 0, size), file, &s.backupRunning}, Size: size}, nil
}

// makeNameless makes a file that goes when it is closed, however the process ends. Only one
// that ends within these lines leaves something behind, for the next, or for Open.
func createUnlinked(path string) (*os.File, error) {
	if err := removeIfExists(path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, fileMode)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// backupReader reads a copy.
type backupReader struct {
	*io.SectionReader
	file    *os.File
	running interface{ Store(bool) }
}

// Close removes the copy.
func (r *backupReader) Close() error {
	err := r.file.Close()
	if !errors.Is(err, os.ErrClosed) { // Else it is another's by now.
		r.running.Store(false)
	}
	return err
}

// copier writes a file, once more where it is there already and differs.
type copier struct {
	ctx            context.Context
	file           *os.File
	at             int64
	paced          bool
	current, fresh []byte
}

// follow copies the first size bytes of a file that changes meanwhile, at its pace.
func (c *copier) copyPaced(path string, size int64) error {
	source, err := openExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	c.paced = true
	_, err = c.ReadFrom(io.NewSectionReader(source, 0, size))
	c.paced = false
	return errors.Join(err, source.Close())
}

// ReadFrom writes what r has, step by step. io.Copy uses it.
func (c *copier) ReadFrom(r io.Reader) (n int64, err error) {
	for {
		start := time.Now()
		got, err := io.ReadFull(r, c.fresh)
		put, writeErr := c.Write(c.fresh[:got])
		n += int64(put)
		switch {
		case writeErr != nil:
			return n, writeErr
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return n, nil
		case err != nil:
			return n, err
		}
		if c.paced {
			if err := c.pause(start); err != nil {
				return n, err
			}
		}
	}
}

// rest waits until the disk has the last step, and then for as long as that step took.
func (c *copier) pause(start time.Time) error {
	if err := flushRange(c.file, c.at-backupStep, backupStep); err != nil {
		return err
	}
	select {
	case <-time.After(time.Since(start)):
	case <-c.ctx.Done():
	}
	return c.ctx.Err()
}

// Write writes p, but for the blocks that are there already.
func (c *copier) Write(p []byte) (n int, err error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	had, err := c.file.ReadAt(c.current[:len(p)], c.at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	for n < len(p) {
		end := min(n+backupBlock, len(p))
		if end > had || !bytes.Equal(c.current[n:end], p[n:end]) {
			if _, err := c.file.WriteAt(p[n:end], c.at); err != nil {
				return n, err
			}
		}
		n, c.at = end, c.at+int64(end-n)
	}
	return n, nil
}
