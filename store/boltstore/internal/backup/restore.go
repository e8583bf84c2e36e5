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
	// Check is called with the path of the complete copy before the copy is put in place. It should
	// check the file in a process of its own. If nil, the copy is not checked.
	Check func(path string) error
	// CheckPages is called with the path of the copy before Restore reads the copy. It should check the pages in a
	// process of its own, because damaged pages may end the process. If nil, they are not checked.
	CheckPages func(path string) error
	// Force renames an existing file and its journals instead of returning ErrExists.
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
	// AsideJournals are the new directories of its journals. A store that was stopped in order has none.
	AsideJournals []string
}

// Restore puts a copy of a backup at path, where Open finds it. Before that, it calls complete with the path of the
// copy; complete may change the copy. At every instant path has the earlier file with its journals, or the complete
// copy. If Restore returns an error, nothing has changed. Errors: ErrExists, ErrInUse, ErrDamaged, a
// *store.BackupSpaceError, those of complete, of o.Check, of ctx and of the file system.
func Restore(ctx context.Context, backup, path string, o RestoreOptions, complete func(path string) error) (
	Restored, error,
) {
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
	done, err := restore(ctx, backup, path, o, complete)
	if err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", path, err)
	}
	return done, nil
}

func restore(ctx context.Context, backup, path string, o RestoreOptions, complete func(path string) error) (
	done Restored, err error,
) {
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
	}
	source, err := openSource(backup)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, source.Close()) }() // Until it is closed, no server can open it.
	unfinished := path + boltfile.UnfinishedSuffix
	if err = copyFile(ctx, source, unfinished, dir); err == nil {
		err = complete(unfinished)
	}
	if err == nil && o.Check != nil {
		err = o.Check(unfinished)
	}
	if err == nil {
		done.Bytes, err = fileSize(unfinished)
	}
	if err == nil {
		dropFromCache(unfinished)
		if old == nil {
			err = os.Rename(unfinished, path)
		} else {
			err = replace(dir, path, unfinished, o.Now, &done)
		}
	}
	if err != nil {
		return Restored{}, errors.Join(err, boltfile.RemoveIfExists(unfinished))
	}
	return done, dir.Sync()
}

// replace puts the copy at path. Before that, it gives the existing file and its journals second names, and syncs
// these to disk. So after a crash at any instant, path has a store that opens.
func replace(dir *os.File, path, unfinished string, now time.Time, done *Restored) error {
	journals, err := boltfile.JournalSuffixes(path)
	if err != nil {
		return err
	}
	aside, err := linkAside(path, path+".before-"+now.UTC().Format("20060102T150405Z"))
	if err != nil {
		return err
	}
	done.Aside = aside
	for _, suffix := range journals {
		if err == nil {
			done.AsideJournals = append(done.AsideJournals, aside+suffix)
			err = linkDir(path+suffix, aside+suffix)
		}
	}
	if err == nil {
		err = dir.Sync()
	}
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		for _, name := range done.AsideJournals {
			err = errors.Join(err, os.RemoveAll(name))
		}
		return errors.Join(err, os.Remove(aside))
	}
	if err := dir.Sync(); err != nil {
		return err
	}
	for _, suffix := range journals {
		// If this fails, the journal stays without effect: the new file has another one.
		_ = os.RemoveAll(path + suffix)
	}
	return nil
}

// linkDir creates a directory with the owner of another one and links to its files, and syncs it.
func linkDir(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, boltfile.DirMode); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.Open(to)
	if err != nil {
		return err
	}
	return errors.Join(boltfile.GiveTo(source, target), target.Sync(), target.Close())
}

// dropFromCache drops a file from the page cache, if it can.
func dropFromCache(path string) {
	if f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0); err == nil {
		boltfile.AdviseDontNeed(f)
		_ = f.Close()
	}
}

// linkAside gives a file a second name, so that path never lacks a file. If a file has that name, or a journal of
// such a file exists, linkAside appends a number. It returns the name.
func linkAside(path, aside string) (string, error) {
	name := aside
	for i := 2; ; i++ {
		journals, err := boltfile.JournalSuffixes(name)
		if err != nil {
			return "", err
		}
		if len(journals) == 0 {
			if err := os.Link(path, name); !errors.Is(err, fs.ErrExist) {
				return name, err
			}
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

// openSource opens a file for reading. Until it is closed, no process can open it as a store.
func openSource(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if locked, err := boltfile.LockShared(f); err == nil && !locked {
		return nil, errors.Join(fmt.Errorf("%w: a server has %s open and may change it during the copy: take a backup "+
			"of the server", boltfile.ErrInUse, path), f.Close())
	}
	return f, nil
}

// copyFile copies a file to a new one in dir and syncs that to disk.
func copyFile(ctx context.Context, source *os.File, to string, dir *os.File) (err error) {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if free, _, err := boltfile.DiskSpace(to); err != nil {
		return err
	} else if free < info.Size() {
		return &store.BackupSpaceError{Needed: info.Size(), Free: free}
	}
	if err := boltfile.RemoveIfExists(to); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|boltfile.NoFollow, boltfile.FileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := boltfile.GiveTo(dir, target); err != nil {
		return err
	}
	if _, err = io.Copy(target, &ctxReader{ctx: ctx, Reader: source}); err != nil {
		return err
	}
	return target.Sync()
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
