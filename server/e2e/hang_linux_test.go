package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc/health/grpc_health_v1"

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

	limitFiles(t, s)
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

// TestHealthAfterStoreFailure checks that all probes report a failed store while the server still ends its turns.
func TestHealthAfterStoreFailure(t *testing.T) {
	t.Parallel()
	p := newPuppet(t, t.TempDir(), "pipe")
	dataDir, before := t.TempDir(), time.Now()
	s := startServer(t, dataDir, "--http-address=127.0.0.1:0", agents(t, `
agents:
  stubborn: {kind: command, command: [sh, -c, "trap '' TERM; exec cat '`+p.path+`'"]}
`))
	s.writesText = true // the error of the store
	health := grpc_health_v1.NewHealthClient(s.conn)
	watches := map[string]grpc_health_v1.Health_WatchClient{}
	for _, service := range []string{"", "parley.v1.ConversationService"} {
		watch, err := health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		watches[service] = watch
		wantStatus(t, service, watch, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	// The process of this turn ignores SIGTERM, so the stop waits for it while probes are answered.
	chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Agent: "stubborn", Content: "Hi"})
	p.start(t)
	limitFiles(t, s)
	if _, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{}); err == nil {
		t.Fatal("CreateConversation above the file size limit = no error, want an error")
	}
	for service, watch := range watches {
		wantStatus(t, service, watch, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	code, body := httpGet(t, s, "/readyz")
	if code != http.StatusServiceUnavailable || body != "not ready: store failed\n" {
		t.Errorf("GET /readyz after a failure of the store = %d with %q, want 503 with the cause", code, body)
	}
	h := &httpServer{s, fmt.Sprintf("http://%s", s.await(t, "serving http")["address"])}
	values := h.scrape(t).values
	if failed, at := values["parley_store_failed"], values["parley_store_last_failure_timestamp_seconds"]; failed != 1 ||
		at < float64(before.Unix()) || at > float64(time.Now().Unix()+1) {
		t.Errorf("parley_store_failed = %v, parley_store_last_failure_timestamp_seconds = %v, want 1 and the time of now",
			failed, at)
	}
	s.await(t, "time not written to its file", "path="+filepath.Join(dataDir, "last-store-failure"))
	p.finish()
	<-s.process.Ended()
	if code := s.process.ProcessState.ExitCode(); code != exitIO {
		t.Errorf("the process ended with %v, want exit code %d", s.process.ProcessState, exitIO)
	}
}

func wantStatus(
	t *testing.T, service string, watch grpc_health_v1.Health_WatchClient,
	want grpc_health_v1.HealthCheckResponse_ServingStatus,
) {
	t.Helper()
	if reply, err := watch.Recv(); err != nil || reply.GetStatus() != want {
		t.Errorf("health of %q = %v, %v; want %v", service, reply, err, want)
	}
}

// limitFiles makes every further write to a file of a server fail.
func limitFiles(t *testing.T, s *server) {
	t.Helper()
	limit := syscall.Rlimit{Cur: 1, Max: 1} // maximal size of a written file, in bytes
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(s.process.Process.Pid), syscall.RLIMIT_FSIZE,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
}
