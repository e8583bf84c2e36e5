package boltfile

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// adviseRandom disables read-ahead for a file. The kernel caches what it reads ahead in large
// folios, and each page that is written into one of those makes ext4 walk over the complete folio.
// After a file was read from start to end, for a check or a backup, appends ran at a third of their
// speed (Linux 6.18). The call is advice, so its errors are ignored.
func adviseRandom(file *os.File) {
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM)
}

// AdviseDontNeed drops a file that is on disk from the page cache. If the file was written from
// start to end, the cache has it in large folios, too.
func AdviseDontNeed(file *os.File) {
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// Preallocate reserves the disk space of a file before its bytes are written. Otherwise ext4 must
// write the data of this file to disk before another file can grow.
func Preallocate(file *os.File, size int64) error {
	err := syscall.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

// FlushRange waits until a range of a file was sent to the disk. Otherwise the kernel collects many
// dirty pages and blocks all writers when there are too many.
func FlushRange(file *os.File, at, size int64) error {
	const waitBeforeWriteWaitAfter = 1 | 2 | 4
	err := unix.SyncFileRange(int(file.Fd()), at, size, waitBeforeWriteWaitAfter)
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ESPIPE) {
		return nil
	}
	return err
}

// DiskSpace returns the free space and the size of the disk of a file, in bytes. If the file system
// does not report them, both are math.MaxInt64, and a write without space fails later.
func DiskSpace(path string) (free, size int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &s); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: filepath.Dir(path), Err: err}
	}
	blockSize := int64(s.Bsize) //nolint:unconvert // On 32-bit systems it has another type.
	if blockSize <= 0 || s.Blocks == 0 {
		return math.MaxInt64, math.MaxInt64, nil
	}
	inBytes := func(blocks uint64) int64 {
		if blocks > math.MaxInt64/uint64(blockSize) {
			return math.MaxInt64
		}
		return int64(blocks) * blockSize
	}
	return inBytes(s.Bavail), inBytes(s.Blocks), nil
}
