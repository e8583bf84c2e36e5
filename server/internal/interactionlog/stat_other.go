//go:build !linux

package interactionlog

import (
	"io/fs"
	"os"
)

// look tells size and permissions of what has a name now, if that is still the file that is.
func statFile(path string, is fs.FileInfo) (size int64, permissions fs.FileMode, same bool) {
	now, err := os.Lstat(path)
	if err != nil || !os.SameFile(now, is) {
		return 0, 0, false
	}
	return now.Size(), now.Mode().Perm(), true
}
