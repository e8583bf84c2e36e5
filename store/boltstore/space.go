package boltstore

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
)

// A reserve of space is kept for operations that must not fail: answers of running turns, ends of
// turns, and deletes. Even these need space, because bbolt writes new pages before it frees the old
// ones.
const (
	// maxReserve is the size of four of the largest batches, in bytes.
	maxReserve = 4 * maxBatchBytes
	// reservePart is the part of a small disk that is reserved, as 1/reservePart.
	reservePart = 16
)

// isLow reports whether the disk and the free pages of the file have no more space than the
// reserve. If the space cannot be determined, it returns false: a write without space fails with an
// error.
func isLow(db *bolt.DB) bool {
	free, size, err := diskSpace(db.Path())
	reserve := min(maxReserve, size/reservePart)
	if err != nil || free >= reserve {
		return false
	}
	stats := db.Stats()
	pages := int64(stats.FreePageN + stats.PendingPageN)
	// Free pages count half: they may be scattered, and a conversation needs as many contiguous
	// pages as it fills.
	return free+pages*int64(db.Info().PageSize)/2 < reserve
}

// checkSpace is called by an operation that writes a new value of size bytes and may not use the
// reserve. It returns store.ErrNoSpace if only the reserve is left. It also does so if such an
// operation with a value no larger was alone in a transaction and found no space. So of a batch
// that does not fit, few operations try: after each failure bbolt reads its list of free pages
// again. The size of the value does not determine the space that a write needs, because bbolt
// writes whole pages, so checkSpace may refuse a value that would fit. Operations that end or
// delete do not call checkSpace, and their failures do not affect it.
func (t *txn) checkSpace(size int) error {
	t.spaceNeeded = size
	if size >= t.refuseFrom {
		return fmt.Errorf("%w: a write that is not larger found no space", store.ErrNoSpace)
	}
	if t.lowSpace() {
		return fmt.Errorf("%w: the rest is reserved for answers and deletes", store.ErrNoSpace)
	}
	return nil
}
