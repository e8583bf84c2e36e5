//go:build !linux

package boltstore

import "math"

// diskSpace returns math.MaxInt64 for both, since this system does not report them. A write without
// space fails later.
func diskSpace(string) (free, size int64, err error) { return math.MaxInt64, math.MaxInt64, nil }
