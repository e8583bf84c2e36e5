package main

import (
	"runtime"
	"slices"
	"strings"
)

// headroomBytes is how much garbage there may be before it is collected, beyond what Go allows.
// A process in which little is in use otherwise collects 20 times a second under load: a tenth
// of all appends and reads.
const headroomBytes = 64 << 20

// headroom is room that the collector has until release. It is address space which nothing ever
// writes to, so it takes no memory itself; to raise GOGC instead would multiply all that is in use.
type headroom []byte

// newHeadroom makes room, none if the environment says how the collector is to work.
func newHeadroom(environ []string) headroom {
	if slices.ContainsFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "GOGC=") || strings.HasPrefix(variable, "GOMEMLIMIT=")
	}) {
		return nil
	}
	return make(headroom, headroomBytes)
}

func (h headroom) release() { runtime.KeepAlive(h) }
