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
