//go:build !linux

package dayfile

import (
	"io/fs"
	"os"
)

// statFile returns the size and permissions of the file with a name. same is false if it is not the file
// that info describes.
func statFile(path string, info fs.FileInfo) (size int64, permissions fs.FileMode, same bool) {
	now, err := os.Lstat(path)
	if err != nil || !os.SameFile(now, info) {
		return 0, 0, false
	}
	return now.Size(), now.Mode().Perm(), true
}
