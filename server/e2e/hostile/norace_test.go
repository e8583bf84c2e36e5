//go:build !race

package hostile

// raceFactor is 1 without the race detector.
const raceFactor = 1
