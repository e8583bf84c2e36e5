package remote

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// TestProbes reads the socket options of a connection from the kernel.
func TestProbes(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, answerTexts("here"))
	dialed := make(chan net.Conn, 1)
	dialer := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dial(ctx, address)
		dialed <- conn
		return conn, err
	}
	a := open(t, Config{Address: s.address}, grpc.WithContextDialer(dialer))
	if _, err := collect(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	conn := wait(t, "the connection", dialed)
	connection, err := conn.(*net.TCPConn).SyscallConn() //nolint:errcheck // A panic fails the test.
	if err != nil {
		t.Fatal(err)
	}
	const userTimeout = 0x12 // TCP_USER_TIMEOUT, which package syscall does not define on all architectures.
	options := []struct {
		name                string
		level, option, want int
	}{
		{"SO_KEEPALIVE", syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, int(probeAfter / time.Second)},
		{"TCP_KEEPINTVL", syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, int(probeEvery / time.Second)},
		{"TCP_KEEPCNT", syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, probes},
		{"TCP_USER_TIMEOUT", syscall.IPPROTO_TCP, userTimeout, int(deadAfter / time.Millisecond)},
	}
	if err := connection.Control(func(fd uintptr) {
		for _, o := range options {
			if got, err := syscall.GetsockoptInt(int(fd), o.level, o.option); got != o.want || err != nil {
				t.Errorf("%s = %d (%v), want %d", o.name, got, err, o.want)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}
