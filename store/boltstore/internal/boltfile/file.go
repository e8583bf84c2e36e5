// Package boltfile opens and creates the bbolt file of a store. It checks a file before bbolt opens it,
// turns panics of bbolt into errors, and controls how the kernel caches the file. Start at [Open].
package boltfile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	// mapSize is the initial size of the memory map in bytes. If the file outgrows it, bbolt maps
	// more. Before that, it waits for the end of all reads, including that of a backup, and blocks
	// all other transactions.
	mapSize = min(64<<30, math.MaxInt/2)

	// FileMode is the mode of all files that the store creates: only their owner has access.
	FileMode = 0o600
	// DirMode is the same for directories.
	DirMode = 0o700

	// Remedy is what to do about a damaged file.
	Remedy = "restore a backup, or move the file away to start with an empty store"

	// BackupSuffix is the suffix of the name that a copy has for an instant. A file with that name
	// is removed, so no other program should use it.
	BackupSuffix = ".unfinished-backup"
	// UnfinishedSuffix is the suffix of a file that is being created. An existing file with that name is
	// removed.
	UnfinishedSuffix = ".unfinished"
)

// journalSuffix is the suffix of the names of journals, before the id.
const journalSuffix = ".journal-"

// JournalDir returns the directory of the journal with that id of the file at path. A file that replaces this one has a
// journal with another id, and so in another directory.
func JournalDir(path string, id [16]byte) string {
	return fmt.Sprintf("%s%s%x", path, journalSuffix, id[:4])
}

// JournalSuffixes returns what follows path in the names of all journals of the file at path, and of earlier files
// there.
func JournalSuffixes(path string) (suffixes []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path))
		if id, found := strings.CutPrefix(rest, journalSuffix); ok && found && e.IsDir() && isID(id) {
			suffixes = append(suffixes, rest)
		}
	}
	return suffixes, err
}

// isID reports whether s is how the name of a journal ends: with the first 4 bytes of its id, in hexadecimal.
func isID(s string) bool {
	id, err := hex.DecodeString(s)
	return err == nil && len(id) == 4
}

// ReadTimeout is how long a reader of a file waits for a process that has it open as a store.
const ReadTimeout = time.Second

// Open opens the bbolt file, and creates it if it does not exist. After that no other process can open
// it. Open waits at most timeout for another process to close the file. Before it opens an existing file,
// it calls check, if that is not nil, with the path and whether the last process closed the file in order.
// It removes the unfinished files of ended processes. Errors: ErrInUse, ErrDamaged, ErrOwner, that of
// check, those of the file system.
func Open(path string, timeout time.Duration, check func(path string, closed bool) error) (*bolt.DB, error) {
	if err := MakeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	err := CheckFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err = create(path); err == nil {
			err = CheckFile(path)
		}
	case err == nil:
		err = checkPages(path, timeout, check)
	}
	if err != nil {
		return nil, err
	}
	db, err := OpenLocked(path, timeout)
	if err != nil {
		return nil, err
	}
	for _, suffix := range []string{UnfinishedSuffix, BackupSuffix} {
		if err := RemoveIfExists(path + suffix); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// OpenLocked opens an existing file for this process only.
func OpenLocked(path string, timeout time.Duration) (*bolt.DB, error) {
	var opened fs.FileInfo
	db, err := openBolt(path, &bolt.Options{
		Timeout:         timeout,
		FreelistType:    bolt.FreelistMapType, // The other type halves the speed after a sweep.
		InitialMmapSize: mapSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			if f, err = OpenExisting(name, flag, mode); err == nil {
				opened, err = f.Stat()
			}
			return f, err
		},
	})
	if err != nil {
		return nil, err
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(opened, now) {
		return nil, errors.Join(fmt.Errorf("%w: it was replaced while it was being opened: try again", ErrInUse), err,
			db.Close())
	}
	return db, nil
}

// OpenReadOnly opens an existing file read-only. Other processes can read it at the same time.
func OpenReadOnly(path string, timeout time.Duration) (*bolt.DB, error) {
	return openBolt(path, &bolt.Options{Timeout: timeout, ReadOnly: true, OpenFile: OpenExisting})
}

// OpenExisting opens a file that was checked. It neither creates a file nor follows a symbolic
// link.
func OpenExisting(name string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(name, flag&^os.O_CREATE|NoFollow, mode)
	if err == nil {
		adviseRandom(f)
	}
	return f, err
}

// openBolt opens a bbolt file and maps the errors and panics of bbolt to those of this package.
func openBolt(path string, o *bolt.Options) (db *bolt.DB, err error) {
	err = RecoverDamage(func() error {
		db, err = bolt.Open(path, FileMode, o)
		return err
	})
	switch {
	case errors.Is(err, ErrDamaged):
		return nil, err
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%w: another process has it open: stop that process or use another file", ErrInUse)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum),
		errors.Is(err, berrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%w: %w: %s", ErrDamaged, err, Remedy)
	}
	return db, err
}

// MakeDir creates a directory and its missing parents, and syncs their names to disk.
func MakeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := MakeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, DirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// SyncDir syncs the names in a directory to disk.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// RemoveIfExists removes a file. It is no error if the file does not exist.
func RemoveIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveEmptyJournals removes the journals of the file at path, and of earlier files there, that have no segment. They
// do no harm, so errors are ignored.
func RemoveEmptyJournals(path string) {
	suffixes, _ := JournalSuffixes(path)
	for _, suffix := range suffixes {
		_ = os.Remove(path + suffix) // It fails unless the directory is empty.
	}
}

// create creates the file with all its buckets under another name and renames it, so that path
// has a complete file or none. A lock on the directory keeps other processes from doing the same.
func create(path string) error {
	dir, err := LockDir(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err // Another process created the file first.
	}
	unfinished := path + UnfinishedSuffix
	if err := RemoveIfExists(unfinished); err != nil {
		return err
	}
	db, err := bolt.Open(unfinished, FileMode, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	// Update returns when all data is on disk.
	if err := errors.Join(db.Update(MakeBuckets), db.Close()); err != nil {
		return err
	}
	return errors.Join(os.Rename(unfinished, path), dir.Sync())
}

// LockDir keeps other processes from creating the file until the directory is closed.
func LockDir(path string) (*os.File, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	locked, err := LockExclusive(dir)
	if err == nil && !locked {
		err = fmt.Errorf("%w: another process is creating it: use another file", ErrInUse)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}
