package boltstore

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// readNoFurther has the kernel read of a file what it is asked for, and nothing ahead. What it
// reads ahead it keeps in large pieces, and a page that is written into one of those costs ext4 a
// walk over all of it: after a file was read from end to end, to check it or for a backup, appends
// had a third of their speed (Linux 6.18). It is advice, so nothing can go wrong.
func adviseRandom(file *os.File) {
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM)
}

// forget takes a file that the disk has out of memory, where it is in large pieces as well if it
// was written from end to end.
func adviseDontNeed(file *os.File) {
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// reserve takes the space of a file ahead of its bytes. What is written there is not among
// what ext4 must have on the disk before another file can grow.
func preallocate(file *os.File, size int64) error {
	err := syscall.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

// flush waits until the disk has been given a part of a file. Otherwise the kernel gathers a
// good deal of memory, and has everybody wait who writes when it is too much.
func flushRange(file *os.File, at, size int64) error {
	const waitBeforeWriteWaitAfter = 1 | 2 | 4
	err := unix.SyncFileRange(int(file.Fd()), at, size, waitBeforeWriteWaitAfter)
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ESPIPE) {
		return nil
	}
	return err
}
