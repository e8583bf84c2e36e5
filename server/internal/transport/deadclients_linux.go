package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitRetransmitInterval returns a hook for [net.ListenConfig.Control]. It makes TCP retransmit
// data and repeat zero-window probes at least deadClientAttempts times per keepalive. A client that
// stopped reading before it died is then detected as fast as any other. With a shorter interval,
// the kernel would give up before the check does. Kernels before 6.15 do not have the option: their
// interval grows up to two minutes.
func limitRetransmitInterval(keepalive time.Duration) func(network, address string, conn syscall.RawConn) error {
	const shortest, longest = time.Second, 2 * time.Minute // The kernel accepts only this range.
	interval := min(max(keepalive/deadClientAttempts, shortest), longest)
	return func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(interval.Milliseconds()))
		})
	}
}

// readAckState reads the state of conn from the kernel. It returns the zero value if conn is not a
// TCP connection or is closed.
func readAckState(conn net.Conn) ackState {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return ackState{}
	}
	info := readTCPInfo(tcp)
	return ackState{
		attempts: int(max(info.Retransmits, info.Probes)), // The kernel resets both to 0 when a packet is acknowledged.
		silence:  time.Duration(info.Last_ack_recv) * time.Millisecond,
	}
}

// readAckedBytes returns how many bytes the client's host has acknowledged.
func readAckedBytes(conn syscall.Conn) uint64 { return readTCPInfo(conn).Bytes_acked }

// readTCPInfo returns the TCP_INFO of a connection, or the zero value on errors.
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

// openFileLimit returns how many files the process may open.
func openFileLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return defaultOpenFiles
	}
	return limit.Cur
}
