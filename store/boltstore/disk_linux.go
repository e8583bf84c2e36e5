package boltstore

import (
	"errors"
	"os"
	"syscall"
)

// reserve takes the space of a file ahead of its bytes. What is written there is not among
// what ext4 must have on the disk before another file can grow.
func reserve(file *os.File, size int64) error {
	err := syscall.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

// flush waits until the disk has been given a part of a file. Otherwise the kernel gathers a
// good deal of memory, and has everybody wait who writes when it is too much.
func flush(file *os.File, at, size int64) error {
	const waitBeforeWriteWaitAfter = 1 | 2 | 4
	err := syscall.SyncFileRange(int(file.Fd()), at, size, waitBeforeWriteWaitAfter)
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ESPIPE) {
		return nil
	}
	return err
}
