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

// claim reserves space for a value of that many bytes. An operation calls it before it writes the value; an
// operation that deletes does not call it. claim returns store.ErrNoSpace if an operation that claimed no
// more bytes was alone in a transaction and found no space. So few operations of a batch that does not fit
// fail at the disk, where each failure makes bbolt read its list of free pages again.
func (t *txn) claim(size int) error {
	t.claimed = size
	if size >= t.fits {
		return fmt.Errorf("%w: another write of at most this size found no space", store.ErrNoSpace)
	}
	return nil
}
