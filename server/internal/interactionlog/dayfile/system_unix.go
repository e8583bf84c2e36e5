//go:build unix

package dayfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openSafely makes an open fail for a symbolic link, and not wait for the writer of a named pipe.
const openSafely = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// Lock locks a directory against all other processes until it is closed. It does not wait: locked is false if another
// process has locked it.
func Lock(dir *os.File) (locked bool, err error) {
	err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// identify returns the time of the last change and the inode of an open file.
func identify(f *os.File) (changed int64, inode uint64, err error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, 0, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return stat.Ctim.Nano(), stat.Ino, nil
}
