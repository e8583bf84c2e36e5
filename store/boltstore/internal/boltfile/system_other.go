//go:build !unix

package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
)

// NoFollow has no effect on this system.
const NoFollow = 0

// LockExclusive returns errors.ErrUnsupported: the store relies on file locks, renames and syncs as Unix has them.
func LockExclusive(*os.File) (locked bool, err error) { return false, unsupported() }

// LockShared returns errors.ErrUnsupported, as LockExclusive does.
func LockShared(*os.File) (locked bool, err error) { return false, unsupported() }

func unsupported() error {
	return fmt.Errorf("a store in a file is not supported on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// GiveTo does nothing.
func GiveTo(_, _ *os.File) error { return nil }

// OwnerOf returns known false: this system does not report the owner as a number.
func OwnerOf(fs.FileInfo) (user int, known bool) { return 0, false }
