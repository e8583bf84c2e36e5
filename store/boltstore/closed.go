package boltstore

import (
	"encoding/binary"
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"
)

// errUnchanged ends a transaction that wrote nothing.
var errUnchanged = errors.New("nothing to commit")

// closedKey is the key of the number of the transaction that wrote it. That is the last transaction
// of a process that closed the file in order.
const closedKey = "closed"

// checkPages calls check, if it is not nil, with the path and whether the last process closed the file in order.
func checkPages(path string, timeout time.Duration, check func(path string, closed bool) error) error {
	if check == nil {
		return nil
	}
	closed := false
	err := recoverDamage(func() error {
		db, err := readFile(path, timeout)
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
	meta := tx.Bucket([]byte(metaBucket))
	if meta == nil {
		return false
	}
	value := meta.Get([]byte(closedKey))
	return len(value) == 8 && binary.BigEndian.Uint64(value) == uint64(number)
}

// markClosed writes that the file was closed in order. If it was and nothing was written since,
// markClosed returns errUnchanged.
func markClosed(tx *bolt.Tx) error {
	if isClosed(tx, tx.ID()-1) {
		return errUnchanged
	}
	return tx.Bucket([]byte(metaBucket)).Put([]byte(closedKey), binary.BigEndian.AppendUint64(nil, uint64(tx.ID())))
}

// unmarkClosed removes what markClosed wrote. If there is no such mark, it returns errUnchanged.
func unmarkClosed(tx *bolt.Tx) error {
	if !isClosed(tx, tx.ID()-1) {
		return errUnchanged
	}
	return tx.Bucket([]byte(metaBucket)).Delete([]byte(closedKey))
}
