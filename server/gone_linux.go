package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlProbes has TCP repeat data, and probes of a closed window, at least goneAttempts times in
// each keepalive, so that a client which had stopped reading before it went is found in the time of
// all others. A shorter time would have the kernel itself give up before that. Kernels before 6.15
// do not have the option: they repeat ever more rarely, at least every two minutes.
func controlProbes(keepalive time.Duration) func(network, address string, conn syscall.RawConn) error {
	const least, most = time.Second, 2 * time.Minute // The kernel takes no others.
	every := min(max(keepalive/goneAttempts, least), most)
	return func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(every.Milliseconds()))
		})
	}
}

// readAckState asks the kernel. A connection that it does not know has no attempts.
func readAckState(conn net.Conn) ackState {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return ackState{}
	}
	info := readTCPInfo(tcp)
	return ackState{
		attempts: int(max(info.Retransmits, info.Probes)), // An answer sets each back to 0.
		silence:  time.Duration(info.Last_ack_recv) * time.Millisecond,
	}
}

// readTaken returns how many bytes the client's machine has acknowledged.
func readTaken(conn syscall.Conn) uint64 { return readTCPInfo(conn).Bytes_acked }

// readTCPInfo returns what the kernel knows of a connection, zeros if it does not know it.
func readTCPInfo(conn syscall.Conn) (info unix.TCPInfo) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return info
	}
	_ = raw.Control(func(fd uintptr) {
		if known, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			info = *known
		}
	})
	return info
}
