package boltstore

import (
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// diskSpace is how much can be written to the disk of a file, and how much it holds in all, in
// bytes. Of a file system that does not tell it is without bound: what does not fit fails on
// the way.
func diskSpace(path string) (free, size int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &s); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: filepath.Dir(path), Err: err}
	}
	blockSize := int64(s.Bsize) //nolint:unconvert // On 32 bits it is another type.
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
