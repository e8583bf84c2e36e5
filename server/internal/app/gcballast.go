package app

import (
	"runtime"
	"slices"
	"strings"
)

// gcBallastBytes is how much garbage the heap may contain before a collection, in addition to what
// Go allows. Without it, a process with a small live heap collects 20 times a second under load,
// which costs a tenth of all appends and reads.
const gcBallastBytes = 64 << 20

// gcBallast is a live allocation that delays garbage collections until release. Nothing writes to
// it, so it takes address space but no memory. A higher GOGC instead would multiply the memory in
// use.
type gcBallast []byte

// newGCBallast allocates the ballast. It returns nil if environ sets GOGC or GOMEMLIMIT.
func newGCBallast(environ []string) gcBallast {
	if slices.ContainsFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "GOGC=") || strings.HasPrefix(variable, "GOMEMLIMIT=")
	}) {
		return nil
	}
	return make(gcBallast, gcBallastBytes)
}

func (b gcBallast) release() { runtime.KeepAlive(b) }
