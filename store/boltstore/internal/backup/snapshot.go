// Package backup copies the file of an open store, and compacts and restores the file of a store that is
// not open. Start at [Snapshot].
package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

const (
	// backupStep is the maximum number of bytes of a copy that are on their way to the disk at
	// once. A commit at the same time waits for at most this number of bytes.
	backupStep = 1 << 20
	// backupBlock is the number of bytes that are written if one of them differs.
	backupBlock = 16 << 10
)

// Snapshot copies the committed state of a store's file at path within one read transaction, which view runs. Then it
// calls complete with the path of the copy; complete may change the copy and add about growth bytes to it. Snapshot
// returns the copy, an unlinked file in the directory of the store, and its size. Errors: a *store.BackupSpaceError,
// that of ctx, those of view, of complete and of the file system.
//
// A read transaction that lasts as long as writing the copy would make the file grow, since no page
// that is replaced in that time can be reused. Each growth waits until the disk has all pending writes.
// So the file is first copied outside of any transaction, while it changes, at a pace that leaves the
// disk to others half of the time. The result is not a consistent database. Then the file is read again
// within one transaction, and the blocks that differ are rewritten: that is mostly reading.
func Snapshot(ctx context.Context, path string, view func(context.Context, func(*bolt.Tx) error) error,
	complete func(path string) error, growth int64,
) (_ *os.File, size int64, err error) {
	if err := view(ctx, func(tx *bolt.Tx) error {
		size = tx.Size() // to the end of the last page that was ever used
		return nil
	}); err != nil {
		return nil, 0, err
	}
	free, disk, err := boltfile.DiskSpace(path)
	if err != nil {
		return nil, 0, err
	}
	noSpace := &store.BackupSpaceError{Needed: size + growth + boltfile.ReserveOf(disk), Free: free}
	if free < noSpace.Needed {
		return nil, 0, noSpace
	}
	file, err := createCopy(path + boltfile.BackupSuffix)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		err = errors.Join(err, boltfile.RemoveIfExists(path+boltfile.BackupSuffix))
		if err != nil && boltfile.IsFull(err) { // Other writes have filled the disk.
			noSpace.Free, _, _ = boltfile.DiskSpace(path)
			noSpace.Free = min(noSpace.Free, noSpace.Needed-1) // The disk may have space again by now.
			err = noSpace
		}
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	if err := boltfile.Preallocate(file, size); err != nil {
		return nil, 0, err
	}
	c := &copier{ctx: ctx, file: file, current: make([]byte, backupStep), fresh: make([]byte, backupStep)}
	if err := c.copyPaced(path, size); err != nil {
		return nil, 0, err
	}
	if err := view(ctx, func(tx *bolt.Tx) error {
		c.at = 0
		size, err = tx.WriteTo(c)
		return err
	}); err != nil {
		return nil, 0, err
	}
	if err := complete(path + boltfile.BackupSuffix); err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// createCopy creates the file of a copy. Snapshot unlinks the file when it is complete, so that it disappears when it
// is closed or when the process ends. If the process ends before the file is unlinked, the next backup or the next
// Open removes it.
func createCopy(path string) (*os.File, error) {
	if err := boltfile.RemoveIfExists(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|boltfile.NoFollow, boltfile.FileMode)
}

// copier writes a file. Where the file already has data, it writes only blocks that differ.
type copier struct {
	ctx            context.Context
	file           *os.File
	at             int64
	paced          bool
	current, fresh []byte
}

// copyPaced copies the first size bytes of a file that may change in the meantime. It pauses after
// each step.
func (c *copier) copyPaced(path string, size int64) error {
	source, err := boltfile.OpenExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	c.paced = true
	_, err = c.ReadFrom(io.NewSectionReader(source, 0, size))
	c.paced = false
	return errors.Join(err, source.Close())
}

// ReadFrom writes all bytes of r in steps. io.Copy uses it.
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

// pause waits until the disk has the last step, and then for as long as that step took.
func (c *copier) pause(start time.Time) error {
	if err := boltfile.FlushRange(c.file, c.at-backupStep, backupStep); err != nil {
		return err
	}
	select {
	case <-time.After(time.Since(start)):
	case <-c.ctx.Done():
	}
	return c.ctx.Err()
}

// Write writes p at the current offset, except the blocks that the file already has.
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
