package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// asServer in the environment makes the test binary parleyd, so that tests start the very
// same program, with -race if they have it, and may kill it.
const asServer = "RUN_AS_PARLEYD"

// patience is how long a test waits for what must come. Only a failing test takes so long.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		go reportUsage()
		main()
	}
	if target := os.Getenv(asSessions); target != "" {
		runSessions(target)
	}
	os.Exit(m.Run())
}

// parleyd is the program with these flags, on a port of its own and without HTTP.
func parleyd(t *testing.T, flags ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	flags = append([]string{"--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json"}, flags...)
	cmd := exec.CommandContext(t.Context(), self, flags...)
	ours := func(v string) bool { return strings.HasPrefix(v, "PARLEY_") }
	// The race detector would else wait a second at the end, which a stop has not to spare.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), asServer+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// server is a parleyd that serves, and a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	parleyv1.AdminServiceClient
	conn    *grpc.ClientConn
	process *exec.Cmd
	log     logLines
	ended   chan struct{} // closed when the process has gone and all that it wrote was read
}

// startServer starts parleyd on a data directory and returns when it serves. It is killed
// at the end of the test if it still runs, and must have written nothing but log lines.
func startServer(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	return startProcess(t, parleyd(t, append([]string{"--data-dir=" + dataDir}, flags...)...))
}

// startProcess is startServer for a command that the test has built.
func startProcess(t *testing.T, process *exec.Cmd) *server {
	t.Helper()
	s := &server{process: process, log: logLines{more: make(chan struct{})}, ended: make(chan struct{})}
	stderr, err := s.process.StderrPipe()
	if err == nil {
		err = s.process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		s.log.read(stderr)
		_ = s.process.Wait() // ProcessState tells.
	}()
	t.Cleanup(func() {
		s.kill()
		if alien, _ := s.log.find(foreign); len(alien) > 0 {
			t.Error("the server wrote what is no log line")
		}
		for _, line := range s.log.lines {
			if t.Failed() {
				t.Log(line)
			}
		}
	})
	address := s.await(t, "serving grpc")["address"]
	timeout := fmt.Sprintf(`{"methodConfig": [{"name": [{}], "timeout": "%.0fs"}]}`, patience.Seconds())
	s.conn, err = grpc.NewClient(fmt.Sprint(address),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(timeout))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	s.ConversationServiceClient, s.AdminServiceClient = parleyv1.NewConversationServiceClient(s.conn), parleyv1.NewAdminServiceClient(s.conn)
	return s
}

// kill ends the server as kill -9 does.
func (s *server) kill() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// terminate asks the server to stop.
func (s *server) terminate() { _ = s.process.Process.Signal(syscall.SIGTERM) }

// wantStop waits for the server to end, which must go well.
func (s *server) wantStop(t *testing.T) {
	t.Helper()
	<-s.ended // It sees to that itself, see stopMargin.
	if state := s.process.ProcessState; state.ExitCode() != 0 {
		t.Errorf("the server ended with %v", state)
	}
}

// await returns the first log line with this message and these fields, "key=value", and
// waits for it if it has not come yet.
func (s *server) await(t *testing.T, message string, fields ...string) logLine {
	t.Helper()
	for late, alive := time.After(patience), true; ; {
		found, more := s.log.find(message, fields...)
		if len(found) > 0 {
			return found[0]
		}
		if !alive {
			t.Fatalf("there is no log line %q %q", message, fields)
		}
		select {
		case <-more:
		case <-s.ended:
			alive = false // a last look
		case <-late:
			alive = false
		}
	}
}
