//go:build !linux

package boltstore

import (
	"math"
	"os"
)

// adviseRandom does nothing on this system.
func adviseRandom(*os.File) {}

// adviseDontNeed does nothing on this system.
func adviseDontNeed(*os.File) {}

// preallocate does nothing on this system.
func preallocate(*os.File, int64) error { return nil }

// flushRange syncs the file, all of it on this system.
func flushRange(file *os.File, _, _ int64) error { return file.Sync() }

// diskSpace returns math.MaxInt64 for both, since this system does not report them. A write without
// space fails later.
func diskSpace(string) (free, size int64, err error) { return math.MaxInt64, math.MaxInt64, nil }
