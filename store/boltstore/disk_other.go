//go:build !linux

package boltstore

import "os"

// adviseRandom does nothing on this system.
func adviseRandom(*os.File) {}

// adviseDontNeed does nothing on this system.
func adviseDontNeed(*os.File) {}

// preallocate does nothing on this system.
func preallocate(*os.File, int64) error { return nil }

// flushRange syncs the file, all of it on this system.
func flushRange(file *os.File, _, _ int64) error { return file.Sync() }
