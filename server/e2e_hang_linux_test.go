package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestHang: nobody reads the log, and then the store fails as well. Writes go on until it
// does, and although a stop cannot even be logged the process ends.
func TestHang(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "parley.sock")
	cmd := parleyd(t, "--data-dir="+t.TempDir(), "--grpc-address=unix:"+socket, "--stop-grace=100ms")
	unread, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	defer stderr.Close()
	cmd.Stderr = stderr
	const pipeBytes = 4096 // the least; a few dozen lines
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, stderr.Fd(), syscall.F_SETPIPE_SZ, pipeBytes); errno != 0 {
		t.Fatal(errno)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(
		fmt.Sprintf(`{"methodConfig": [{"name": [{}], "waitForReady": true, "timeout": "%.0fs"}]}`, patience.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	create := func() error {
		_, err := parleyv1.NewConversationServiceClient(conn).CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{})
		return err
	}
	for range 100 {
		if err := create(); err != nil {
			t.Fatalf("while nobody reads the log: %v", err)
		}
	}

	limit := syscall.Rlimit{Cur: 1, Max: 1} // bytes of a file that is written to
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(cmd.Process.Pid), syscall.RLIMIT_FSIZE,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err := create(); err == nil {
		t.Error("written beyond the limit of a file")
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the process does not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != exitIO {
		t.Errorf("it ended with %v, want %d", cmd.ProcessState, exitIO)
	}
}

// TestListenBusySocket: a server whose backlog is full still has its socket.
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
	for range 10 { // Nobody accepts them.
		conn, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
		if err != nil {
			break
		}
		t.Cleanup(func() { conn.Close() })
	}
	l, err := listen(t.Context(), "unix:"+path)
	if err == nil {
		l.Close()
		t.Fatal("the socket of another server was taken")
	}
	if !strings.Contains(err.Error(), path+" is in use") {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}
