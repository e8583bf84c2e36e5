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

// ownerOf returns the user that owns a file, and whether the system reports it.
func ownerOf(info fs.FileInfo) (user int, known bool) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), true
	}
	return 0, false
}
