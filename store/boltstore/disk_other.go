//go:build !linux

package boltstore

import "os"

// adviseRandom does nothing on this system.
func readNoFurther(*os.File) {}

// adviseDontNeed does nothing on this system.
func forget(*os.File) {}

// preallocate does nothing on this system.
func reserve(*os.File, int64) error { return nil }

// flushRange syncs the file, all of it on this system.
func flush(file *os.File, _, _ int64) error { return file.Sync() }
