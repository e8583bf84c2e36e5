//go:build race

package hostile

// raceFactor is how many times the memory the race detector needs.
const raceFactor = 4
