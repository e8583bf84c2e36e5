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

// yield is called by an operation that writes something new, a value of that many bytes. It returns
// store.ErrNoSpace where what is left is kept for other operations, and where an operation that
// yields, with a value no larger, was alone in a transaction and found no space: of a batch that does
// not fit, few try, since after each failure bbolt reads its list of free pages again. How much space
// a write needs is not told by its value, for bbolt writes whole pages: this may refuse what would
// fit. So operations that end or delete something never ask, and their failures do not count.
func (t *txn) checkSpace(size int) error {
	t.spaceNeeded = size
	if size >= t.refuseFrom {
		return fmt.Errorf("%w: another write that is no larger found none", store.ErrNoSpace)
	}
	if t.lowSpace() {
		return fmt.Errorf("%w: what is left is kept for answers and deletes", store.ErrNoSpace)
	}
	return nil
}
