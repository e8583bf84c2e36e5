package interactionlog

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// look tells size and permissions of what has a name now, if that is still the file that is. It
// does not ask for its times: once somebody has, Linux gives the next write a time of its own (see
// its documentation of multigrain timestamps, since 6.13), which the journal of the file system
// has to take in, and commits of a store on the same disk took a fifth longer.
func statFile(path string, is fs.FileInfo) (size int64, permissions fs.FileMode, same bool) {
	was, ok := is.Sys().(*syscall.Stat_t)
	var now unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_SIZE|unix.STATX_MODE, &now)
	same = ok && err == nil && now.Ino == was.Ino && unix.Mkdev(now.Dev_major, now.Dev_minor) == was.Dev
	return int64(now.Size), fs.FileMode(now.Mode) & fs.ModePerm, same
}
