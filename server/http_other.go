//go:build !linux

package main

import (
	"syscall"
	"time"
)

// controlUserTimeout does nothing where TCP has no such time.
func controlUserTimeout(time.Duration) func(network, address string, conn syscall.RawConn) error {
	return nil
}
