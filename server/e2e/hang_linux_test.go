package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

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
	s := startUnconnected(t, cmd)
	s.connect(t, "unix:"+socket, true)
	create := func() error {
		_, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{})
		return err
	}
	for range 100 {
		if err := create(); err != nil {
			t.Fatalf("CreateConversation with a full log pipe = %v, want no error", err)
		}
	}

	limit := syscall.Rlimit{Cur: 1, Max: 1} // maximal size of a written file, in bytes
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(s.process.Process.Pid), syscall.RLIMIT_FSIZE,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err := create(); err == nil {
		t.Error("CreateConversation above the file size limit = no error, want an error")
	}
	select {
	case <-s.process.Ended():
	case <-time.After(timeout):
		t.Fatalf("the process runs %v after the failure of the store", timeout)
	}
	if code := s.process.ProcessState.ExitCode(); code != exitIO {
		t.Errorf("the process ended with %v, want exit code %d", s.process.ProcessState, exitIO)
	}
}
