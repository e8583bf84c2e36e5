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

// What the files of the log may be read and written by: their owner.
const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
)

// makeDir makes the directory when it is missing, with what is above it, and takes from others
// the right to read it. It refuses a link, and whatever else is no directory, with ErrRefused.
func makeDir(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, dirMode); err == nil {
			err = syncDir(filepath.Dir(dir)) // It is to outlast a power cut.
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
		return fmt.Errorf("%w: %s is a link: name the directory itself", ErrRefused, dir)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory: remove it or name another one", ErrRefused, dir)
	case info.Mode().Perm() != dirMode:
		return os.Chmod(dir, dirMode)
	}
	return nil
}

// syncDir makes durable which files a directory has.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openFile opens a regular file of the log, of which only the owner may have rights: if the
// modes of file or directory are otherwise, or even keep the owner out, it mends them, and the
// umask does not matter. A file that it may make gets its directory, too. It follows no link
// and waits for nobody; anything else than a regular file it refuses with ErrRefused.
func openFile(path string, flag int) (*os.File, fs.FileInfo, error) {
	flag |= syscall.O_NOFOLLOW | syscall.O_NONBLOCK // Somebody may have put a named pipe there.
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
		return nil, nil, fmt.Errorf("%w: %s is a link: remove it", ErrRefused, path)
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO):
		return nil, nil, fmt.Errorf("%w: %s is no regular file: remove it", ErrRefused, path)
	case err != nil:
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%w: %s is no regular file: remove it", ErrRefused, path)
	case info.Mode().Perm() != fileMode:
		err = f.Chmod(fileMode)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// mendFile gives the owner back the rights to a file and to its directory.
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
		return fmt.Errorf("%w: %s is no regular file: remove it", ErrRefused, path)
	}
	return os.Chmod(path, fileMode)
}

// appendFile is the file of a day, open for lines to be appended.
type appendFile struct {
	*os.File

	day  day
	path string
	info fs.FileInfo // tells it from another file of the same name
	// size up to the end of the last entry that the log has written. Another size means that another
	// process has written to the file.
	size int64
}

// openAppend opens the file of a day, and makes it when there is none.
func openAppend(dir string, d day) (*appendFile, error) {
	path := filepath.Join(dir, d.fileName())
	f, info, err := openFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	return &appendFile{File: f, day: d, path: path, info: info, size: -1}, nil
}

// check reports whether the file is still the one of its name, and mends its mode.
func (f *appendFile) revalidate() (size int64, same bool) {
	size, permissions, same := statFile(f.path, f.info)
	if !same || permissions != fileMode && f.Chmod(fileMode) != nil {
		return 0, false
	}
	return size, true
}

// append writes lines in one write. They come behind a line break, which is written only when
// the file, of that size, does not end with one. It returns how many bytes of the lines are in
// the file: with an error, those of lines that are whole or, if all is set, none; the rest of
// what had been written is cut off again. Where that fails too, what is left of a line gets
// its line break from the next append.
func (f *appendFile) append(size int64, lines []byte, all bool) (kept int, err error) {
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
	n, err := f.Write(lines[start:])
	if err == nil {
		f.size = size + int64(n)
		return len(lines) - 1, nil
	}
	written := lines[start : start+n]
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

// cut makes the file shorter, unless it has another size than ours: what somebody else has
// appended meanwhile stays.
func (f *appendFile) cut(from, to int64) bool {
	info, err := f.Stat()
	return err == nil && info.Size() == from && f.Truncate(to) == nil
}
