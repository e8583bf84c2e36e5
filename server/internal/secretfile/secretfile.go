// Package secretfile reads the files that settings name, such as certificates, private keys and tokens. It reads only
// regular files of a limited size, and a secret only if other users can neither read nor replace it. Start at [Read]
// and [ReadPrivate].
//
// Errors continue a sentence that starts with the name of a setting.
package secretfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// MaxPEMBytes is the maximum size of a file of certificates. The certificates of a system have about
// 300 KiB.
const MaxPEMBytes = 1 << 20

// Read reads a regular file of at most maximum bytes. Errors do not contain the path.
func Read(path string, maximum int) ([]byte, error) {
	data, _, err := read(path, maximum)
	return data, err
}

// ReadPrivate reads a file as Read does. It returns an error, which contains the path, if other users can read or
// replace the file. On Windows, where a mode does not tell who has access, only the kind and the size are checked.
//
// A file of root may be readable by its group, unless root runs the process. Kubernetes mounts secrets in this way if a
// pod has an fsGroup. The credentials of a systemd unit look the same: a list of access rights for its user, which
// group permissions stand for. Only root can have given these rights.
func ReadPrivate(path string, maximum int) ([]byte, error) {
	data, info, err := read(path, maximum)
	if err != nil {
		return nil, err
	}
	if !hasModes {
		return data, nil
	}
	mode := info.Mode().Perm()
	allowed := fs.FileMode(0o700)
	if isOfRoot(info) && os.Geteuid() != 0 {
		allowed |= 0o040
	}
	if mode&^allowed != 0 {
		return nil, fmt.Errorf("%.200q can be accessed by other users: its mode is %#o; run chmod 600", path, mode)
	}
	if info, err = os.Stat(filepath.Dir(path)); err != nil {
		return nil, unreadable(err)
	}
	if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return nil, fmt.Errorf(
			"%.200q can be replaced by other users: the mode of its directory is %#o; run chmod o-w on it",
			path, info.Mode().Perm())
	}
	return data, nil
}

// read reads a file. info is that of the file that was read, even if another one has replaced it since.
func read(path string, maximum int) (data []byte, info fs.FileInfo, err error) {
	// Without O_NONBLOCK, opening a pipe would block until another process writes to it.
	file, err := os.OpenFile(path, os.O_RDONLY|notBlocking, 0)
	if err != nil {
		return nil, nil, unreadable(err)
	}
	defer file.Close() //nolint:errcheck // It was only read.
	if info, err = file.Stat(); err != nil {
		return nil, nil, unreadable(err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("must name a regular file")
	}
	if info.Size() <= int64(maximum) { // Else do not read it at all.
		if data, err = io.ReadAll(io.LimitReader(file, int64(maximum)+1)); err != nil {
			return nil, nil, unreadable(err)
		}
	}
	if info.Size() > int64(maximum) || len(data) > maximum { // It may grow while it is read.
		return nil, nil, fmt.Errorf("names a file of more than %s", sizeText(maximum))
	}
	return data, info, nil
}

func unreadable(err error) error {
	if inPath, ok := errors.AsType[*fs.PathError](err); ok {
		err = inPath.Err
	}
	return fmt.Errorf("names a file that cannot be read: %w", err)
}

// sizeText returns a size in the form of the settings.
func sizeText(n int) string {
	switch {
	case n > 0 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", n>>20)
	case n > 0 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
