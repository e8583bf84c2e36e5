// Package dayfile names, opens and appends to the files in the directory of an interaction log: the file of each
// day in UTC, its index, and temporary files that replace them. It owns their names and permissions: only the
// owner of the directory has access. Of the contents it knows only that they are lines. Start at [Day].
package dayfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// ErrRefused reports a link, or something that is not a directory or a regular file, in place of one.
var ErrRefused = errors.New("refused")

const (
	// DirMode has the permissions of the directory: only the owner has access.
	DirMode fs.FileMode = 0o700
	// FileMode has the permissions of its files.
	FileMode fs.FileMode = 0o600
)

// MakeDir creates a directory and its parents if they are missing, and removes the permissions of other
// users. It returns ErrRefused for a link and anything else that is not a directory.
func MakeDir(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, DirMode); err == nil {
			err = SyncDir(filepath.Dir(dir)) // The directory must survive a power cut.
		}
		if err != nil {
			return err
		}
		info, err = os.Lstat(dir)
	}
	switch {
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeSymlink:
		return fmt.Errorf("%w: %s is a link; name the directory itself", ErrRefused, dir)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory; remove it or name another one", ErrRefused, dir)
	case info.Mode().Perm() != DirMode:
		return os.Chmod(dir, DirMode)
	}
	return nil
}

// SyncDir makes the names of the files in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Days returns the days from first to last, both included, that have a file, in a directory,
// oldest first. A missing directory has none.
func Days(dir string, first, last Day) ([]Day, error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err := cmp.Or(err, d.Close()); err != nil {
		return nil, err
	}
	var found []Day
	for _, name := range names {
		if d, ok := ParseFileName(name); ok && d >= first && d <= last {
			found = append(found, d)
		}
	}
	slices.Sort(found)
	return found, nil
}
