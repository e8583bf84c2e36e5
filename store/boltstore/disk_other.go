//go:build !linux

package boltstore

import "os"

// reserve does nothing here.
func reserve(*os.File, int64) error { return nil }

// flush waits until the disk has what was written to a file.
func flush(file *os.File, _, _ int64) error { return file.Sync() }
