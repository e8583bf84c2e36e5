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
	var state ackState
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return state
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return state
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state.missing = info.Unacked > 0 || info.Probes > 0 // An answer sets Probes back to 0.
			state.silence = time.Duration(info.Last_ack_recv) * time.Millisecond
		}
	})
	return state
}
