//go:build !linux

package boltfile

import (
	"math"
	"os"
)

// adviseRandom does nothing on this system.
func adviseRandom(*os.File) {}

// AdviseDontNeed does nothing on this system.
func AdviseDontNeed(*os.File) {}

// Preallocate does nothing on this system.
func Preallocate(*os.File, int64) error { return nil }

// FlushRange syncs the file, all of it on this system.
func FlushRange(file *os.File, _, _ int64) error { return file.Sync() }

// DiskSpace returns math.MaxInt64 for both, since this system does not report them. A write without
// space fails later.
func DiskSpace(string) (free, size int64, err error) { return math.MaxInt64, math.MaxInt64, nil }
