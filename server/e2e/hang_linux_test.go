package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestHang: the log's pipe is full and has no reader, and then the store fails. Writes succeed until
// the store fails. The process ends although it cannot log its stop.
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
	const pipeBytes = 4096 // the minimum; holds a few dozen log entries
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
		_, err := parleyv1.NewConversationServiceClient(conn).CreateConversation(t.Context(),
			&parleyv1.CreateConversationRequest{})
		return err
	}
	for range 100 {
		if err := create(); err != nil {
			t.Fatalf("CreateConversation with a full log pipe = %v, want no error", err)
		}
	}

	limit := syscall.Rlimit{Cur: 1, Max: 1} // maximal size of a written file, in bytes
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(cmd.Process.Pid), syscall.RLIMIT_FSIZE,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err := create(); err == nil {
		t.Error("CreateConversation above the file size limit = no error, want an error")
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("the process runs %v after the failure of the store", patience)
	}
	if code := cmd.ProcessState.ExitCode(); code != exitIO {
		t.Errorf("the process ended with %v, want exit code %d", cmd.ProcessState, exitIO)
	}
}
