//go:build !unix

package tokenfile

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// tryLock returns errors.ErrUnsupported: a change replaces the locked file, which this system does not allow.
func tryLock(*os.File) (locked bool, err error) {
	return false, fmt.Errorf("changing a token file is not supported on %s; change it on Linux or macOS and copy it: %w",
		runtime.GOOS, errors.ErrUnsupported)
}

// keepOwner does nothing, as no file is changed.
func keepOwner(_, _ *os.File) error { return nil }
