package transport

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// TestStopBeforeServe checks that a stop before the server serves is not an error.
func TestStopBeforeServe(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Servers{log: slog.New(slog.DiscardHandler), grpc: grpc.NewServer(), grpcListener: l}
	s.grpc.GracefulStop()
	if err := s.serveGRPC(); err != nil {
		t.Errorf("serveGRPC() after a stop = %v, want nil", err)
	}
}

// TestListenBusySocket checks that listen does not replace the socket of a server whose backlog is full.
func TestListenBusySocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "busy.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 10 { // They fill the backlog: nothing accepts them.
		conn, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
		if err != nil {
			break
		}
		t.Cleanup(func() { conn.Close() })
	}
	l, err := listen(t.Context(), "unix:"+path)
	if err == nil {
		l.Close()
		t.Fatal("listen() on the socket of another server succeeded, want an error")
	}
	if !strings.Contains(err.Error(), path+" is in use") {
		t.Errorf("listen() = %v, want %q in it", err, path+" is in use")
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("socket after listen(): %v", err)
	}
}
