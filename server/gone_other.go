//go:build !linux

package main

import (
	"net"
	"syscall"
	"time"
)

// controlProbes does nothing: TCP has no such option.
func controlProbes(time.Duration) func(network, address string, conn syscall.RawConn) error {
	return nil
}

// readAckState knows nothing. A client that is gone is found by TCP's keepalive while no data
// waits for it, and else when TCP gives up repeating that data.
func readAckState(net.Conn) ackState { return ackState{} }

// readTaken knows nothing, so that all deadlines of writes count from their beginnings.
func readTaken(syscall.Conn) uint64 { return 0 }
