package dayfile

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// statFile returns the size and permissions of the file with a name. same is false if it is not the file
// that info describes. statFile does not read the file's times: after that, Linux gives the next write a
// time of its own (multigrain timestamps, since 6.13). The journal of the file system must record that
// time, and commits of a store on the same disk took a fifth longer.
func statFile(path string, info fs.FileInfo) (size int64, permissions fs.FileMode, same bool) {
	was, ok := info.Sys().(*syscall.Stat_t)
	var now unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_SIZE|unix.STATX_MODE, &now)
	same = ok && err == nil && now.Ino == was.Ino && unix.Mkdev(now.Dev_major, now.Dev_minor) == was.Dev
	return int64(now.Size), fs.FileMode(now.Mode) & fs.ModePerm, same
}
