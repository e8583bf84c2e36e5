package boltstore

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
)

// Some room is kept for what must not fail: the answers of turns that run, what ends and what
// is deleted. For each bbolt first writes pages anew, and only then frees the old ones.
const (
	// maxReserve is four of the largest batches.
	maxReserve = 4 * maxBatchBytes
	// reservePart of a small disk is kept, one in so many bytes.
	reservePart = 16
)

// isLow reports whether no more than the reserve is left for the file, on its disk and in its
// own free pages. Where that cannot be told there is room: a write that finds none says so.
func isLow(db *bolt.DB) bool {
	free, size, err := diskSpace(db.Path())
	reserve := min(maxReserve, size/reservePart)
	if err != nil || free >= reserve {
		return false
	}
	stats := db.Stats()
	pages := int64(stats.FreePageN + stats.PendingPageN)
	// They may lie scattered, and a conversation needs as many in a row as it fills.
	return free+pages*int64(db.Info().PageSize)/2 < reserve
}

// yield returns store.ErrNoSpace where what is left is not for something new.
func (t *txn) yield() error {
	if t.low() {
		return fmt.Errorf("%w: what is left is kept for answers and deletes", store.ErrNoSpace)
	}
	return nil
}

// claim is called by an operation before it writes a value of that many bytes. It returns
// store.ErrNoSpace if an operation that claimed no more was alone in a transaction and found no
// space: where a batch does not fit, few operations fail at the disk, each of which has bbolt read its
// list of free pages again. An operation that deletes claims nothing.
func (t *txn) claim(size int) error {
	t.claimed = size
	if size >= t.fits {
		return fmt.Errorf("%w: another write that is no larger found none", store.ErrNoSpace)
	}
	return nil
}
