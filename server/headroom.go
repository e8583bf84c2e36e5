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

// leaveHeadroom gives the collector that much room until the returned function is called, unless
// the environment says how it is to work. The room is address space which nothing ever writes to,
// so it takes no memory itself; to raise GOGC instead would multiply all that is in use.
func leaveHeadroom(environ []string) (end func()) {
	if slices.ContainsFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "GOGC=") || strings.HasPrefix(variable, "GOMEMLIMIT=")
	}) {
		return func() {}
	}
	room := make([]byte, headroomBytes)
	return func() { runtime.KeepAlive(room) }
}
