package storetest

// RaceDetector reports whether the race detector is on, for the tests outside of this package.
const RaceDetector = raceDetector
