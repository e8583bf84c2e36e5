// Package nettest makes TCP connections for tests: slow ones, and ones whose network is cut. Start at
// [DialSmallBuffer].
package nettest

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// DialSmallBuffer connects with a small receive buffer and without keepalive. The connection is closed
// at the end of the test.
func DialSmallBuffer(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	dialer := net.Dialer{KeepAlive: -1, Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		err := conn.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10) })
		return errors.Join(err, failed)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("dialed connection is a %T, want a *net.TCPConn", conn)
	}
	return tcp
}

// DropPackets makes the host of conn drop all packets that it receives for the connection, as if the
// network were cut. It skips the test if the kernel requires root and the user is not root.
func DropPackets(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // Keep 0 bytes.
	setOption(t, conn, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	})
}

// AcceptPackets ends the effect of DropPackets.
func AcceptPackets(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	setOption(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
}

func setOption(t *testing.T, conn *net.TCPConn, set func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = set(int(fd)) })
	if errors.Is(failed, unix.EPERM) && os.Geteuid() != 0 {
		t.Skipf("SKIPPED: run as root; this kernel lets no other user filter the packets of a socket: %v", failed)
	}
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}
