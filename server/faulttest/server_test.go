package faulttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// server is a parleyd process and, when it serves, a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	parleyv1.AdminServiceClient
	process *exec.Cmd
	conn    *grpc.ClientConn
	serving chan string   // its address
	ended   chan struct{} // closed when the process has ended and its output is read

	mu     sync.Mutex
	stderr bytes.Buffer
}

// launch starts parleyd on a data directory and a free port, and does not wait until it serves. The
// wrapper, if not nil, is a program with arguments that runs parleyd, for example strace. At the end
// of the test both are killed if they still run.
func launch(t *testing.T, dataDir string, wrapper []string, flags ...string) *server {
	t.Helper()
	line := slices.Concat(wrapper, []string{
		parleyd, "--data-dir=" + dataDir, "--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json",
	}, flags)
	s := &server{process: exec.Command(line[0], line[1:]...), serving: make(chan string, 1), ended: make(chan struct{})}
	ours := func(v string) bool { return strings.HasPrefix(v, "PARLEY_") }
	s.process.Env = slices.DeleteFunc(s.process.Environ(), ours)
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // kill sends the signal to the group, which includes the wrapper.
	stderr, err := s.process.StderrPipe()
	if err == nil {
		err = s.process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			s.read(lines.Bytes())
		}
		_ = s.process.Wait() // The error is in ProcessState.
	}()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("parleyd on %s ended with %v, standard error:\n%s", dataDir, s.process.ProcessState, quote(s.output()))
		}
	})
	return s
}

func (s *server) read(line []byte) {
	s.mu.Lock()
	s.stderr.Write(append(line, '\n'))
	s.mu.Unlock()
	var entry struct{ Msg, Address string }
	if json.Unmarshal(line, &entry) == nil && entry.Msg == "serving grpc" {
		s.serving <- entry.Address
	}
}

// output returns the standard error of the process so far.
func (s *server) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// awaitServing waits until the server serves. It returns an error if the process ends before.
func (s *server) awaitServing(t *testing.T) error {
	t.Helper()
	select {
	case address := <-s.serving:
		// Without retries by gRPC, each step is sent as often as the client counts.
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			return err
		}
		s.conn = conn
		s.ConversationServiceClient, s.AdminServiceClient = parleyv1.NewConversationServiceClient(conn), parleyv1.NewAdminServiceClient(conn)
		return nil
	case <-s.ended:
		return fmt.Errorf("parleyd ended with %v:\n%s", s.process.ProcessState, quote(s.output()))
	case <-time.After(testTimeout):
		return fmt.Errorf("parleyd did not serve within %v:\n%s", testTimeout, quote(s.output()))
	}
}

// start starts parleyd and waits until it serves. The test fails if it does not.
func start(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	s := launch(t, dataDir, nil, flags...)
	if err := s.awaitServing(t); err != nil {
		t.Fatal(err)
	}
	return s
}

// kill kills the server and its wrapper with SIGKILL, and returns when both have ended. No call may
// start after it.
func (s *server) kill() {
	select {
	case <-s.ended: // Another process may have its id now.
	default:
		_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	}
	<-s.ended
	if s.conn != nil {
		s.conn.Close() // An open connection would try to reconnect until the test ends.
	}
}

// awaitExit waits until the server ends by itself. It returns the exit code, -1 for a signal, and
// the standard error.
func (s *server) awaitExit(t *testing.T) (code int, stderr string) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(testTimeout):
		t.Fatalf("parleyd did not end within %v:\n%s", testTimeout, quote(s.output()))
	}
	return s.process.ProcessState.ExitCode(), s.output()
}

// stop stops the server with SIGTERM, as an operator does, and waits for its end. The test fails
// unless the exit code is 0.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-s.process.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, stderr := s.awaitExit(t); code != 0 {
		t.Errorf("exit code after SIGTERM = %d, want 0; standard error:\n%s", code, quote(stderr))
	}
}
