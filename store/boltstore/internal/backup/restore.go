package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// ErrExists means that the file that Restore should create exists.
var ErrExists = errors.New("there is a store already")

// RestoreOptions configure Restore. The zero value is usable.
type RestoreOptions struct {
	// Check is called with the path of the copied backup before the copy is put in place. It should
	// check the file in a process of its own. If nil, the copy is not checked.
	Check func(path string) error
	// Force renames an existing file instead of returning ErrExists.
	Force bool
	// Now is the time in the name of the renamed file; zero is the present time.
	Now time.Time
}

// Restored is the result of Restore.
type Restored struct {
	// Bytes is the size of the restored store.
	Bytes int64
	// Aside is the new path of the file that existed before; empty if there was none.
	Aside string
}

// Restore puts a copy of a backup at path, where Open finds it. At every instant path has the
// earlier file or the complete copy. If Restore returns an error, nothing has changed. Errors:
// ErrExists, ErrInUse, ErrDamaged, a *store.BackupSpaceError, those of o.Check, of ctx and of the
// file system.
func Restore(ctx context.Context, backup, path string, o RestoreOptions) (Restored, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	info, err := boltfile.CheckReadOnly(backup)
	if err != nil {
		return Restored{}, fmt.Errorf("backup %s: %w", backup, err)
	}
	if there, err := os.Lstat(path + boltfile.UnfinishedSuffix); err == nil && os.SameFile(info, there) {
		return Restored{}, fmt.Errorf("backup %s: the copy would overwrite it: give it another name", backup)
	}
	done, err := restore(ctx, backup, path, o)
	if err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", path, err)
	}
	return done, nil
}

func restore(ctx context.Context, backup, path string, o RestoreOptions) (done Restored, err error) {
	if err := boltfile.MakeDir(filepath.Dir(path)); err != nil {
		return done, err
	}
	dir, err := boltfile.LockDir(path)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	old, err := lockExisting(path)
	if err != nil {
		return done, err
	}
	if old != nil {
		defer func() { err = errors.Join(err, old.Close()) }()
		if !o.Force {
			return done, fmt.Errorf("%w: move it aside with --force, or name another data directory", ErrExists)
		}
		done.Aside = path + ".before-" + o.Now.UTC().Format("20060102T150405Z")
	}
	unfinished := path + boltfile.UnfinishedSuffix
	if done.Bytes, err = copyFile(ctx, backup, unfinished, dir); err == nil && o.Check != nil {
		err = o.Check(unfinished)
	}
	if err != nil {
		return Restored{}, errors.Join(err, boltfile.RemoveIfExists(unfinished))
	}
	if err := replace(dir, path, unfinished, &done); err != nil {
		return Restored{}, errors.Join(err, boltfile.RemoveIfExists(unfinished))
	}
	return done, dir.Sync()
}

// replace puts the copy at path. An existing file there has its second name on disk before it loses
// its first one.
func replace(dir *os.File, path, unfinished string, done *Restored) (err error) {
	dropFromCache(unfinished)
	if done.Aside == "" {
		return os.Rename(unfinished, path)
	}
	if done.Aside, err = linkAside(path, done.Aside); err != nil {
		return err
	}
	if err = dir.Sync(); err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(done.Aside))
	}
	return nil
}

// dropFromCache drops a file from the page cache, if it can.
func dropFromCache(path string) {
	if f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0); err == nil {
		boltfile.AdviseDontNeed(f)
		_ = f.Close()
	}
}

// linkAside gives a file a second name, so that path never lacks a file. If the name exists,
// linkAside appends a number. It returns the name.
func linkAside(path, aside string) (string, error) {
	name := aside
	for i := 2; ; i++ {
		if err := os.Link(path, name); !errors.Is(err, fs.ErrExist) {
			return name, err
		}
		name = fmt.Sprintf("%s-%d", aside, i)
	}
}

// lockExisting keeps other processes from opening the file until the result is closed. It returns
// nil if the file does not exist.
func lockExisting(path string) (*os.File, error) {
	f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // No file is a valid state.
	} else if err != nil {
		return nil, err
	}
	locked, err := boltfile.LockExclusive(f)
	if err == nil && !locked {
		err = fmt.Errorf("%w: another process has it open: stop that process, or name another data directory",
			boltfile.ErrInUse)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// copyFile copies a file to a new one in dir, syncs that to disk, and returns its size.
func copyFile(ctx context.Context, from, to string, dir *os.File) (size int64, err error) {
	source, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if locked, err := boltfile.LockShared(source); err == nil && !locked {
		return 0, fmt.Errorf("%w: a server has %s open and may change it during the copy: take a backup of the server",
			boltfile.ErrInUse, from)
	}
	info, err := source.Stat()
	if err != nil {
		return 0, err
	}
	if free, _, err := boltfile.DiskSpace(to); err != nil {
		return 0, err
	} else if free < info.Size() {
		return 0, &store.BackupSpaceError{Needed: info.Size(), Free: free}
	}
	if err := boltfile.RemoveIfExists(to); err != nil {
		return 0, err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|boltfile.NoFollow, boltfile.FileMode)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := boltfile.GiveTo(dir, target); err != nil {
		return 0, err
	}
	if size, err = io.Copy(target, &ctxReader{ctx: ctx, Reader: source}); err != nil {
		return size, err
	}
	return size, target.Sync()
}

// ctxReader is a reader that fails after its context has ended.
type ctxReader struct {
	io.Reader

	ctx context.Context
}

// Read reads from the reader unless the context has ended.
func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
