//go:build race

package hostile

// raceFactor is how many times the memory and the time the race detector needs.
const raceFactor = 4
