package dayfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// OpenFile opens a regular file of the log. It sets the permissions of the file to the owner's alone,
// whatever the umask, and repairs those of the file and its directory if they keep the owner out. If it
// may create the file, it creates the directory, too. It does not follow links and does not block. It
// returns ErrRefused for anything that is not a regular file.
func OpenFile(path string, flag int) (*os.File, fs.FileInfo, error) {
	flag |= openSafely // Another user may have put a named pipe there.
	if flag&os.O_CREATE != 0 {
		if err := MakeDir(filepath.Dir(path)); err != nil {
			return nil, nil, err
		}
	}
	f, err := os.OpenFile(path, flag, FileMode)
	if errors.Is(err, fs.ErrPermission) {
		if repairMode(path) != nil {
			return nil, nil, err
		}
		f, err = os.OpenFile(path, flag, FileMode)
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
	case info.Mode().Perm() != FileMode:
		err = f.Chmod(FileMode)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// repairMode restores the owner's permissions of a file and of its directory.
func repairMode(path string) error {
	if err := MakeDir(filepath.Dir(path)); err != nil {
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
	return os.Chmod(path, FileMode)
}

// SyncFile makes a file durable. A file that was removed is not an error.
func SyncFile(path string) error {
	f, _, err := OpenFile(path, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrRefused):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Fingerprint identifies a file with its content: it differs if the file was replaced or changed.
// Times are in nanoseconds since 1970.
type Fingerprint struct {
	Size     int64
	Modified int64
	Changed  int64 // like Modified, but no program can set it
	Inode    uint64
}

func fingerprintOf(f *os.File, info fs.FileInfo) (Fingerprint, error) {
	p := Fingerprint{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	var err error
	p.Changed, p.Inode, err = identify(f)
	return p, err
}

// File is a file as it was when it was opened. Readers ignore what was appended later.
type File struct {
	*os.File
	Fingerprint
}

// OpenRead opens a file of a directory. It returns nil without an error if the file is missing
// or not a regular file, such as a link or a directory.
func OpenRead(dir, name string) (*File, error) {
	// O_NONBLOCK: another user may have put a named pipe there, and opening one waits for a writer.
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|openSafely, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return nil, nil //nolint:nilnil // A missing file is not an error.
	case err != nil:
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close())
	}
	fingerprint, err := fingerprintOf(f, info)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{File: f, Fingerprint: fingerprint}, nil
}
