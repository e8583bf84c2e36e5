//go:build unix

package boltfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// NoFollow makes an open fail for a symbolic link.
const NoFollow = syscall.O_NOFOLLOW

// LockExclusive locks a file or directory against all other processes until it is closed. It does not wait: locked
// is false if another process has locked it.
func LockExclusive(f *os.File) (locked bool, err error) { return lock(f, syscall.LOCK_EX) }

// LockShared locks a file until it is closed against processes that call LockExclusive. It does not wait: locked is
// false if such a process has locked it.
func LockShared(f *os.File) (locked bool, err error) { return lock(f, syscall.LOCK_SH) }

func lock(f *os.File, kind int) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), kind|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// GiveTo gives an open file to the owner of a directory, unless that is root: a server without privileges can then open
// what root has written. If this process is not root's, it does nothing.
func GiveTo(dir, f *os.File) error {
	info, err := dir.Stat()
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 {
		return f.Chown(int(s.Uid), int(s.Gid))
	}
	return nil
}

// OwnerOf returns the user that owns a file, and whether the system reports it.
func OwnerOf(info fs.FileInfo) (user int, known bool) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), true
	}
	return 0, false
}
