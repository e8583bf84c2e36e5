package boltstore

import (
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// diskSpace returns the free space and the size of the disk of a file, in bytes. If the file system
// does not report them, both are math.MaxInt64, and a write without space fails later.
func diskSpace(path string) (free, size int64, err error) {
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
