package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// compactBatch is the number of bytes that Compact writes in one transaction.
const compactBatch = 16 << 20

// Compacted is the result of Compact.
type Compacted struct {
	// Before and After are the sizes of the file in bytes.
	Before, After int64
}

// Compact rewrites the file at path without its free pages, which otherwise remain in the file for
// later writes. At every instant path has the old file or the complete new one. Run Compact only on
// a file that CheckPages found sound: another file may end the process. Compact calls checked with
// the path of the new file before it replaces the old one. If checked returns an error, the old
// file stays. Errors: ErrInUse, ErrDamaged, ErrSchema, ErrOwner, a *store.BackupSpaceError, those
// of the file system.
func Compact(path string, checked func(path string) error) (Compacted, error) {
	done, err := compact(path, checked)
	if err != nil {
		return Compacted{}, fmt.Errorf("compact %s: %w", path, err)
	}
	return done, nil
}

func compact(path string, checked func(path string) error) (done Compacted, err error) {
	if err := boltfile.CheckFile(path); err != nil {
		return done, err
	}
	source, err := boltfile.OpenLocked(path, boltfile.ReadTimeout)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	unfinished := path + boltfile.UnfinishedSuffix
	if done.Before, err = compactable(path, source); err != nil {
		return done, err
	}
	if err = boltfile.RemoveIfExists(unfinished); err == nil {
		err = boltfile.RecoverDamage(func() error { return writeCompact(unfinished, source) })
	}
	if err == nil {
		err = checked(unfinished)
	}
	if err == nil {
		done.After, err = fileSize(unfinished)
	}
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return done, errors.Join(err, boltfile.RemoveIfExists(unfinished))
	}
	return done, boltfile.SyncDir(filepath.Dir(path))
}

// compactable returns the size of the file. It returns an error if another program wrote the file,
// or if the disk has no space for the pages in use.
func compactable(path string, source *bolt.DB) (size int64, err error) {
	if size, err = fileSize(path); err != nil {
		return 0, err
	}
	free, _, err := boltfile.DiskSpace(path)
	if err != nil {
		return 0, err
	}
	return size, source.View(func(tx *bolt.Tx) error {
		pages := source.Stats()
		needed := tx.Size() - int64(pages.FreePageN+pages.PendingPageN)*int64(source.Info().PageSize)
		if free < needed {
			return &store.BackupSpaceError{Needed: needed, Free: free}
		}
		return boltfile.CheckSchema(tx)
	})
}

// writeCompact writes the contents of source to a new file and syncs it.
func writeCompact(path string, source *bolt.DB) error {
	target, err := bolt.Open(path, boltfile.FileMode, &bolt.Options{
		Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoSync: true,
	})
	if err != nil {
		return err
	}
	err = bolt.Compact(target, source, compactBatch)
	if err == nil {
		err = target.Update(boltfile.MarkClosed)
	}
	// The copied mark may have the number of a transaction of the new file.
	if err == nil || errors.Is(err, boltfile.ErrUnchanged) {
		err = target.Sync()
	}
	return errors.Join(err, target.Close())
}

func fileSize(path string) (int64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
