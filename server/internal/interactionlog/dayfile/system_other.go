//go:build !unix

package dayfile

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// openSafely has no effect on this system.
const openSafely = 0

// Lock returns errors.ErrUnsupported: the log relies on locks, renames and syncs of directories as Unix has them.
func Lock(*os.File) (locked bool, err error) { return false, unsupported() }

func unsupported() error {
	return fmt.Errorf("the interaction log is not supported on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// identify returns errors.ErrUnsupported, as Lock does.
func identify(*os.File) (changed int64, inode uint64, err error) { return 0, 0, unsupported() }
