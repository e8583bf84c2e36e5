package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlProbes has TCP probe a closed window at least once in each every, so that a client which
// had stopped reading before it went is found in the time of all others. Kernels before 6.15 do
// not have the option: they probe ever more rarely, at least every two minutes.
func controlProbes(every time.Duration) func(network, address string, conn syscall.RawConn) error {
	const least, most = time.Second, 2 * time.Minute // The kernel takes no others.
	return func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(min(max(every, least), most).Milliseconds()))
		})
	}
}

// readAckState asks the kernel. A connection that it does not know misses nothing.
func readAckState(conn net.Conn) ackState {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return ackState{}
	}
	info := readTCPInfo(tcp)
	return ackState{
		missing: info.Unacked > 0 || info.Probes > 0, // An answer sets Probes back to 0.
		silence: time.Duration(info.Last_ack_recv) * time.Millisecond,
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
