//go:build !linux

package transport

import (
	"net"
	"syscall"
	"time"
)

// limitRetransmitInterval returns nil: only Linux has the socket option.
func limitRetransmitInterval(time.Duration) func(network, address string, conn syscall.RawConn) error {
	return nil
}

// readAckState returns the zero value. If no data is unsent, TCP keepalive detects a dead client.
// If data is unsent, TCP detects it when it gives up retransmitting.
func readAckState(net.Conn) ackState { return ackState{} }

// readAckedBytes returns 0, so that a write is never extended past its deadline.
func readAckedBytes(syscall.Conn) uint64 { return 0 }

// openFileLimit returns how many files the process may open at least.
func openFileLimit() uint64 { return defaultOpenFiles }
