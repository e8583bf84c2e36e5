//go:build !linux

package boltstore

import (
	"math"
	"os"
)

// freeBytes cannot tell: what does not fit fails on the way.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

// reserve does nothing here.
func reserve(*os.File, int64) error { return nil }

// flush waits until the disk has what was written to a file.
func flush(file *os.File, _, _ int64) error { return file.Sync() }
