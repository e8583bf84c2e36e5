//go:build unix

package secretfile

import (
	"io/fs"
	"syscall"
)

const (
	// hasModes says that the mode of a file tells who can access it.
	hasModes = true
	// notBlocking makes an open not wait for the writer of a named pipe.
	notBlocking = syscall.O_NONBLOCK | syscall.O_NOCTTY
)

// isOfRoot reports whether root owns a file.
func isOfRoot(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == 0
}
