package boltfile

import (
	"fmt"
	"math"
	"path/filepath"
	"syscall"

	bolt "go.etcd.io/bbolt"
)

// MaxReserve is the maximum of ReserveOf in bytes: the size of four of the largest batches of a store. The reserve is
// kept for operations that must not fail: answers of running turns, ends of turns, and deletes. Even these need space,
// because bbolt writes new pages before it frees the old ones.
const MaxReserve = 64 << 20

// ReserveOf returns the reserve on a disk of size bytes.
func ReserveOf(size int64) int64 { return min(MaxReserve, size/ReservePart) }

// IsLow reports whether the disk and the free pages of the file have no more space than the reserve. If the space
// cannot be determined, it returns false: a write without space fails with an error.
func IsLow(db *bolt.DB) bool {
	free, size, err := DiskSpace(db.Path())
	reserve := ReserveOf(size)
	if err != nil || free >= reserve {
		return false
	}
	return free+spaceInFile(db) < reserve
}

// SpaceToFold returns how many bytes a fold may write. It leaves half of the reserve to deletes.
func SpaceToFold(db *bolt.DB) int64 {
	free, disk, err := DiskSpace(db.Path())
	if err != nil {
		return math.MaxInt64
	}
	return free + spaceInFile(db) - ReserveOf(disk)/2
}

// CheckBeside returns an error if the disk of a directory would have less than the reserve with size bytes more.
// If the space cannot be determined, it returns nil.
func CheckBeside(dir string, size int64) error {
	free, disk, err := DiskSpace(filepath.Join(dir, "file"))
	if reserve := ReserveOf(disk); err == nil && free-size < reserve {
		return fmt.Errorf("%d bytes are free, and the store reserves %d: %w", free, reserve, syscall.ENOSPC)
	}
	return nil
}

// spaceInFile returns half of the bytes in free pages: they may be scattered, and a value needs as many contiguous
// pages as it fills.
func spaceInFile(db *bolt.DB) int64 {
	stats := db.Stats()
	return int64(stats.FreePageN+stats.PendingPageN) * int64(db.Info().PageSize) / 2
}
