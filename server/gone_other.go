//go:build !linux

package main

import (
	"net"
	"syscall"
	"time"
)

// controlProbes returns no hook: only Linux has the option.
func controlProbes(time.Duration) func(network, address string, conn syscall.RawConn) error {
	return nil
}

// readAckState returns the zero value. TCP's keepalive finds a client that is gone while no data
// waits for it. While data waits, TCP finds it when it gives up sending the data again.
func readAckState(net.Conn) ackState { return ackState{} }

// readTaken knows nothing, so that all deadlines of writes count from their beginnings.
func readTaken(syscall.Conn) uint64 { return 0 }
