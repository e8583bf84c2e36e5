package boltfile

import (
	"encoding/binary"
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// ErrUnchanged ends a transaction that wrote nothing.
var ErrUnchanged = errors.New("nothing to commit")

// IsRolledBack reports whether the transaction with that id had no effect: it failed before bbolt
// wrote its meta page, which makes a transaction valid.
func IsRolledBack(db *bolt.DB, id int) bool {
	newest := id
	err := db.View(func(tx *bolt.Tx) error {
		newest = tx.ID()
		return nil
	})
	return err == nil && newest < id
}

// closedKey is the key of the number of the transaction that wrote it. That is the last transaction
// of a process that closed the file in order.
const closedKey = "closed"

// checkPages calls check, if it is not nil, with the path and whether the last process closed the file in order.
func checkPages(path string, timeout time.Duration, check func(path string, closed bool) error) error {
	if check == nil {
		return nil
	}
	closed := false
	err := RecoverDamage(func() error {
		db, err := OpenReadOnly(path, timeout)
		if err != nil {
			return err
		}
		return errors.Join(db.View(func(tx *bolt.Tx) error {
			closed = isClosed(tx, tx.ID())
			return nil
		}), db.Close())
	})
	if err != nil && !errors.Is(err, ErrDamaged) { // If the file is damaged, check reports more.
		return err
	}
	return check(path, closed)
}

// isClosed reports whether the transaction with that number closed the file.
func isClosed(tx *bolt.Tx, number int) bool {
	meta := tx.Bucket([]byte(layout.MetaBucket))
	if meta == nil {
		return false
	}
	value := meta.Get([]byte(closedKey))
	return len(value) == 8 && binary.BigEndian.Uint64(value) == uint64(number)
}

// MarkClosed writes that the file was closed in order. If it was and nothing was written since,
// MarkClosed returns ErrUnchanged.
func MarkClosed(tx *bolt.Tx) error {
	if isClosed(tx, tx.ID()-1) {
		return ErrUnchanged
	}
	return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte(closedKey), binary.BigEndian.AppendUint64(nil, uint64(tx.ID())))
}

// UnmarkClosed removes what MarkClosed wrote. If there is no such mark, it returns ErrUnchanged.
func UnmarkClosed(tx *bolt.Tx) error {
	if !isClosed(tx, tx.ID()-1) {
		return ErrUnchanged
	}
	return tx.Bucket([]byte(layout.MetaBucket)).Delete([]byte(closedKey))
}
