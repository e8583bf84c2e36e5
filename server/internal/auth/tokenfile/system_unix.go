//go:build unix

package tokenfile

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tryLock locks a file until it is closed. locked is false if another process has locked it.
func tryLock(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// keepOwner gives file the owner of old, for example if root changes a file of the server's user.
func keepOwner(file, old *os.File) error {
	if old == nil {
		return nil
	}
	info, err := old.Stat()
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() {
		return nil
	}
	if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("the file belongs to another user; run the command as that user: %w", err)
	}
	return nil
}
