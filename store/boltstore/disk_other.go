//go:build !linux

package boltstore

import "os"

// readNoFurther does nothing here.
func readNoFurther(*os.File) {}

// forget does nothing here.
func forget(*os.File) {}

// reserve does nothing here.
func reserve(*os.File, int64) error { return nil }

// flush waits until the disk has what was written to a file.
func flush(file *os.File, _, _ int64) error { return file.Sync() }
