package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/parleyhq/parley/store"
)

// ErrExists says that there is a file where Restore is to put one.
var ErrExists = errors.New("there is a store already")

// RestoreOptions are what Restore is told. The zero value is usable.
type RestoreOptions struct {
	// Check looks at the copy of the backup, at that path, before it is put in place; it is to
	// run Check of this package, in a process of its own. Nil: the copy is taken unseen.
	Check func(path string) error
	// Force moves a file that is there aside.
	Force bool
	// Now names the file that is moved aside; zero is the present time.
	Now time.Time
}

// Restored is what Restore did.
type Restored struct {
	// Bytes of the store now.
	Bytes int64
	// Aside is where the file is that was there before; empty if there was none.
	Aside string
}

// Restore puts a copy of a backup at path, where Open finds it. At every instant there is the
// file from before or the whole copy. Errors: ErrExists, ErrInUse, ErrDamaged, a
// *store.BackupSpaceError, those of o.Check, of ctx and of the file system; nothing has changed
// then.
func Restore(ctx context.Context, backup, path string, o RestoreOptions) (Restored, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	info, err := checkReadOnly(backup)
	if err != nil {
		return Restored{}, fmt.Errorf("backup %s: %w", backup, err)
	}
	if there, err := os.Lstat(path + unfinishedSuffix); err == nil && os.SameFile(info, there) {
		return Restored{}, fmt.Errorf("backup %s: the copy would take its place: give it another name", backup)
	}
	done, err := restore(ctx, backup, path, o)
	if err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", path, err)
	}
	return done, nil
}

func restore(ctx context.Context, backup, path string, o RestoreOptions) (done Restored, err error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return done, err
	}
	dir, err := lockDir(path)
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
	unfinished := path + unfinishedSuffix
	if done.Bytes, err = copyFile(ctx, backup, unfinished); err == nil && o.Check != nil {
		err = o.Check(unfinished)
	}
	if err != nil {
		return Restored{}, errors.Join(err, removeIfExists(unfinished))
	}
	if err := replace(dir, path, unfinished, &done); err != nil {
		return Restored{}, errors.Join(err, removeIfExists(unfinished))
	}
	return done, dir.Sync()
}

// replace puts the copy in place of what is at path. That has its second name on the disk ahead of
// losing its first.
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

// forgetFile takes a file out of memory, if it can.
func dropFromCache(path string) {
	if f, err := openExisting(path, os.O_RDONLY, 0); err == nil {
		adviseDontNeed(f)
		_ = f.Close()
	}
}

// linkAside gives a file a second name, so that there is never none of the first, and returns it:
// that one, or if there is one of that name one with a number.
func linkAside(path, aside string) (string, error) {
	name := aside
	for i := 2; ; i++ {
		if err := os.Link(path, name); !errors.Is(err, fs.ErrExist) {
			return name, err
		}
		name = fmt.Sprintf("%s-%d", aside, i)
	}
}

// lockOld keeps other processes from opening the file that is there, until it is closed; nil
// if there is none.
func lockExisting(path string) (*os.File, error) {
	f, err := openExisting(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // There is none, and nothing is wrong with that.
	} else if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another process holds it: stop that one, or name another data directory", ErrInUse)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// copyFile copies a file into a new one, which outlasts a power cut, and returns its size.
func copyFile(ctx context.Context, from, to string) (size int64, err error) {
	source, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if errors.Is(syscall.Flock(int(source.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return 0, fmt.Errorf("%w: a server has %s open, which changes meanwhile: take a backup of it", ErrInUse, from)
	}
	info, err := source.Stat()
	if err != nil {
		return 0, err
	}
	if free, _, err := diskSpace(to); err != nil {
		return 0, err
	} else if free < info.Size() {
		return 0, &store.BackupSpaceError{Needed: info.Size(), Free: free}
	}
	if err := removeIfExists(to); err != nil {
		return 0, err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, fileMode)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if size, err = io.Copy(target, &ctxReader{ctx: ctx, Reader: source}); err != nil {
		return size, err
	}
	return size, target.Sync()
}

// untilEnd is a reader that fails when its context has ended.
type ctxReader struct {
	io.Reader

	ctx context.Context
}

// Read reads.
func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
