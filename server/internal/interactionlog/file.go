package interactionlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Permissions of the directory and of its files: only the owner has access.
const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
)

// makeDir creates a directory and its parents if they are missing, and removes the permissions of other
// users. It returns ErrRefused for a link and anything else that is not a directory.
func makeDir(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, dirMode); err == nil {
			err = syncDir(filepath.Dir(dir)) // The directory must survive a power cut.
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
	case info.Mode().Perm() != dirMode:
		return os.Chmod(dir, dirMode)
	}
	return nil
}

// syncDir makes the names of the files in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openFile opens a regular file of the log. It sets the permissions of the file to the owner's alone,
// whatever the umask, and repairs those of the file and its directory if they keep the owner out. If it
// may create the file, it creates the directory, too. It does not follow links and does not block. It
// returns ErrRefused for anything that is not a regular file.
func openFile(path string, flag int) (*os.File, fs.FileInfo, error) {
	flag |= syscall.O_NOFOLLOW | syscall.O_NONBLOCK // Another user may have put a named pipe there.
	if flag&os.O_CREATE != 0 {
		if err := makeDir(filepath.Dir(path)); err != nil {
			return nil, nil, err
		}
	}
	f, err := os.OpenFile(path, flag, fileMode)
	if errors.Is(err, fs.ErrPermission) {
		if repairMode(path) != nil {
			return nil, nil, err
		}
		f, err = os.OpenFile(path, flag, fileMode)
	}
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, nil, fmt.Errorf("%w: %s is a link; remove it", ErrRefused, path)
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO):
		return nil, nil, fmt.Errorf("%w: %s is not a regular file; remove it", ErrRefused, path)
	case err != nil:
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%w: %s is not a regular file; remove it", ErrRefused, path)
	case info.Mode().Perm() != fileMode:
		err = f.Chmod(fileMode)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// repairMode restores the owner's permissions of a file and of its directory.
func repairMode(path string) error {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a regular file; remove it", ErrRefused, path)
	}
	return os.Chmod(path, fileMode)
}

// appendFile is the file of a day, open for appending entries.
type appendFile struct {
	*os.File

	day  day
	path string
	info fs.FileInfo // identifies the file, so that another one of the same name is noticed
	// size is the offset after the last entry that the log has written. If the file has another size,
	// another process has written to it.
	size int64
}

// openAppend opens the file of a day and creates it if it is missing.
func openAppend(dir string, d day) (*appendFile, error) {
	path := filepath.Join(dir, d.fileName())
	f, info, err := openFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	return &appendFile{File: f, day: d, path: path, info: info, size: -1}, nil
}

// revalidate reports whether the file still has its name, repairs its permissions and returns its size.
func (f *appendFile) revalidate() (size int64, same bool) {
	size, permissions, same := statFile(f.path, f.info)
	if !same || permissions != fileMode && f.Chmod(fileMode) != nil {
		return 0, false
	}
	return size, true
}

// append writes entries in one write to the file, which has the given size. entries begin with a line
// break, which is written only if the file does not end with one. append returns how many bytes of the
// entries, without that line break, are in the file. After an error these are complete entries only, or
// none if all is set, and the rest is truncated again. If truncating fails too, the next append ends the
// partial entry with a line break.
func (f *appendFile) append(size int64, entries []byte, all bool) (kept int, err error) {
	start := 1
	if size != f.size && size > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil {
			return 0, err
		}
		if last[0] != '\n' {
			start = 0
		}
	}
	n, err := f.Write(entries[start:])
	if err == nil {
		f.size = size + int64(n)
		return len(entries) - 1, nil
	}
	written := entries[start : start+n]
	complete := bytes.LastIndexByte(written, '\n') + 1
	keep := complete
	if all {
		keep = 0
	}
	if keep < n && f.cut(size+int64(n), size+int64(keep)) {
		complete = keep
	}
	f.size = size + int64(complete)
	return max(0, complete-(1-start)), err
}

// cut truncates the file from one size to another. It does nothing if another process has appended to
// the file.
func (f *appendFile) cut(from, to int64) bool {
	info, err := f.Stat()
	return err == nil && info.Size() == from && f.Truncate(to) == nil
}
