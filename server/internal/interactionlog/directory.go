package interactionlog

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// parseDay parses a day such as "2026-11-20". ok is false if there is no such day.
func parseDay(s string) (d day, ok bool) {
	at, err := time.Parse(dayLayout, s)
	return dayOf(at), err == nil
}

// days returns the days from first to last, both included, that have a file, oldest first. A missing
// directory has none.
func (r *reader) days(first, last day) ([]day, error) {
	dir, err := os.Open(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err := cmp.Or(err, dir.Close()); err != nil {
		return nil, err
	}
	var found []day
	for _, name := range names {
		if d, ok := parseFileName(name); ok && d >= first && d <= last {
			found = append(found, d)
		}
	}
	slices.Sort(found)
	return found, nil
}

// fingerprint identifies a file with its content: it differs if the file was replaced or changed.
// Times are in nanoseconds since 1970.
type fingerprint struct {
	size     int64
	modified int64
	changed  int64 // like modified, but no program can set it
	inode    uint64
}

func fingerprintOf(f *os.File, info fs.FileInfo) (fingerprint, error) {
	p := fingerprint{size: info.Size(), modified: info.ModTime().UnixNano()}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return p, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	p.changed, p.inode = stat.Ctim.Nano(), stat.Ino
	return p, nil
}

// openedFile is a file as it was when it was opened. Readers ignore what was appended later.
type openedFile struct {
	*os.File
	fingerprint
}

// openToRead opens a file of the directory. It returns nil without an error if the file is missing
// or not a regular file, such as a link or a directory.
func (r *reader) openToRead(name string) (*openedFile, error) {
	// O_NONBLOCK: another user may have put a named pipe there, and opening one waits for a writer.
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return nil, nil //nolint:nilnil // A missing file is not an error.
	case err != nil:
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close())
	}
	fingerprint, err := fingerprintOf(f, info)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &openedFile{File: f, fingerprint: fingerprint}, nil
}
