package main

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlUserTimeout bounds how long what was sent may go unacknowledged. Without it a
// stream to a client that has vanished fills the socket for a quarter of an hour; TCP's
// keepalive asks only while nothing is under way.
func controlUserTimeout(timeout time.Duration) func(network, address string, conn syscall.RawConn) error {
	return func(_, _ string, conn syscall.RawConn) error {
		var failed error
		if err := conn.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
		}); err != nil {
			return err
		}
		return failed
	}
}
