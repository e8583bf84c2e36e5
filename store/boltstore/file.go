package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	// schemaVersion is of the layout that the package comment draws.
	schemaVersion = 1
	schemaKey     = "schema"
	// mapped is how much address space is taken at once. bbolt takes more when the file
	// outgrows it, and stops all reads for that.
	mapped = 1 << 30

	fileMode, dirMode = 0o600, 0o700

	remedy = "restore a backup, or move the file away to begin anew"
)

// openFile opens the bbolt file, and makes it first when there is none.
func openFile(path string, timeout time.Duration) (*bolt.DB, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	err := checkFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeFile(path); err != nil {
			return nil, err
		}
		err = checkFile(path)
	}
	if err != nil {
		return nil, err
	}
	return openBolt(path, &bolt.Options{
		Timeout:         timeout,
		FreelistType:    bolt.FreelistMapType, // The other one halves the speed after a sweep.
		InitialMmapSize: mapped,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			return os.OpenFile(name, flag&^os.O_CREATE|syscall.O_NOFOLLOW, mode) // What was checked, or nothing.
		},
	})
}

// openBolt says in our words what bbolt says in its own, or cries out.
func openBolt(path string, o *bolt.Options) (db *bolt.DB, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			db, err = nil, fmt.Errorf("%w: %v: %s", ErrDamaged, cause, remedy)
		}
	}()
	db, err = bolt.Open(path, fileMode, o)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%w: another process holds it: stop that one or use another file", ErrInUse)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%w: %w: %s", ErrDamaged, err, remedy)
	}
	return db, err
}

// makeDir makes a directory and those above it, so that they outlast a power cut.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(parent)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// makeFile makes the file with all its buckets under another name, so that there is a whole
// one or none. A lock on the directory keeps other processes from doing so meanwhile.
func makeFile(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("%w: another process is making it: use another file", ErrInUse)
	} else if err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err // Somebody was faster.
	}
	unfinished := path + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(unfinished, fileMode, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	// Update waits until all is on the disk.
	if err := errors.Join(db.Update(makeBuckets), db.Close()); err != nil {
		return err
	}
	return errors.Join(os.Rename(unfinished, path), dir.Sync())
}

func makeBuckets(tx *bolt.Tx) error {
	for _, name := range []string{tenantsBucket, conversationsBucket, idsBucket, expiryBucket, turnsBucket, sessionsBucket, endsBucket} {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	meta, err := tx.CreateBucket([]byte(metaBucket))
	if err != nil {
		return err
	}
	return meta.Put([]byte(schemaKey), binary.BigEndian.AppendUint32(nil, schemaVersion))
}

// checkSchema finds files of other programs and of other versions of this one.
func checkSchema(tx *bolt.Tx) error {
	var version uint32
	if meta := tx.Bucket([]byte(metaBucket)); meta != nil {
		if value := meta.Get([]byte(schemaKey)); len(value) == 4 {
			version = binary.BigEndian.Uint32(value)
		}
	}
	switch {
	case version == 0:
		return fmt.Errorf("%w: it is a bbolt file, but not one of Parley's: use another file", ErrDamaged)
	case version != schemaVersion:
		return fmt.Errorf("%w: it has schema %d, this version of Parley reads %d: use the version that wrote it",
			ErrSchema, version, schemaVersion)
	}
	for _, name := range []string{tenantsBucket, conversationsBucket, idsBucket, expiryBucket, turnsBucket} {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("%w: bucket %q is missing: %s", ErrDamaged, name, remedy)
		}
	}
	return nil
}

// checkFile looks at a file before bbolt does, which takes an empty one for new and dies of
// one that is too short. It also takes from others the right to read it.
func checkFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is not a regular file but %s: use another file", ErrDamaged, info.Mode().Type())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info.Mode().Perm() != fileMode {
		if err := f.Chmod(fileMode); err != nil {
			return err
		}
	}
	cause, err := findDamage(f)
	if err != nil || cause == "" {
		return err
	}
	// Somebody who writes to it at this moment may show us a page in between.
	if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrDamaged, cause, remedy)
}

// findDamage says in words what is wrong with a file, as far as its two meta pages tell;
// nothing when it is sound.
func findDamage(f *os.File) (cause string, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() == 0 {
		return "it is empty", nil
	}
	first, err := readMeta(f, 0)
	if err != nil {
		return "", err
	}
	newest := first
	// The second page begins where the first one ends, which it does not tell if damaged.
	for size := int64(1 << 10); size <= 16<<20; size <<= 1 {
		second, err := readMeta(f, size)
		if err != nil {
			return "", err
		}
		if size == second.pageSize && (!first.valid || size == first.pageSize && second.transaction > first.transaction) {
			newest = second
		}
	}
	switch {
	case !newest.valid:
		return "neither of its two meta pages is whole", nil
	case newest.pages > uint64(info.Size()/newest.pageSize):
		return fmt.Sprintf("it is cut off: %d bytes of %d pages of %d", info.Size(), newest.pages, newest.pageSize), nil
	case newest.root >= newest.pages || newest.freelist >= newest.pages:
		return "its meta page leads outside of it", nil
	}
	return "", nil
}

// metaPage is what bbolt keeps in each of the first two pages; the newer one holds.
type metaPage struct {
	valid                              bool
	pageSize                           int64
	root, freelist, pages, transaction uint64
}

// readMeta reads a meta page: a page header of 16 bytes, then magic, version, page size and
// flags of 4 bytes each, then root, sequence, free list, high-water mark, transaction
// and FNV-1a of all that of 8 bytes each, as this machine orders bytes.
func readMeta(f *os.File, at int64) (metaPage, error) {
	const header, sumAt, size = 16, 56, 64
	var page [header + size]byte
	if _, err := f.ReadAt(page[:], at); errors.Is(err, io.EOF) {
		return metaPage{}, nil
	} else if err != nil {
		return metaPage{}, err
	}
	b, order := page[header:], binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:sumAt])
	m := metaPage{
		pageSize: int64(order.Uint32(b[8:])), root: order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		pages: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}
	const magic, version = 0xED0CDAED, 2
	m.valid = order.Uint32(b) == magic && order.Uint32(b[4:]) == version && sum.Sum64() == order.Uint64(b[sumAt:]) && m.pageSize > 0
	if !m.valid {
		return metaPage{}, nil
	}
	return m, nil
}
