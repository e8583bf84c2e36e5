package eventlog

import "fmt"

// GoneError reports that the requested events cannot be read.
type GoneError struct {
	// After is the index in the request.
	After int32
	// Oldest is the smallest index from which the turn can be read, 0 if the turn is no longer
	// stored.
	Oldest int32
	// Last is the index of the newest event.
	Last int32
}

// Error says from which index to read instead.
func (e *GoneError) Error() string {
	switch {
	case e.Oldest == 0:
		return "the turn is no longer stored; its answer may be in the history"
	case e.After > e.Last:
		return fmt.Sprintf("after_index %d is greater than the newest index %d; use 0 to read the complete turn", e.After,
			e.Last)
	}
	return fmt.Sprintf("after_index %d: the events after it are no longer stored one by one; "+
		"use 0 to read the complete turn with merged texts", e.After)
}
