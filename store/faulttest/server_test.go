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

// server is a parleyd, and a client of it once it serves.
type server struct {
	parleyv1.ConversationServiceClient
	parleyv1.AdminServiceClient
	process *exec.Cmd
	conn    *grpc.ClientConn
	serving chan string   // its address
	ended   chan struct{} // closed when the process has gone and all that it wrote was read

	mu     sync.Mutex
	stderr bytes.Buffer
}

// launch starts parleyd on a data directory, on a port of its own, and does not wait until it
// serves. The wrapper, if there is one, is a program with its arguments that runs it, such as
// strace. Whatever is left of both is killed at the end of the test.
func launch(t *testing.T, dataDir string, wrapper []string, flags ...string) *server {
	t.Helper()
	line := slices.Concat(wrapper, []string{
		parleyd, "--data-dir=" + dataDir, "--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json",
	}, flags)
	s := &server{process: exec.Command(line[0], line[1:]...), serving: make(chan string, 1), ended: make(chan struct{})}
	ours := func(v string) bool { return strings.HasPrefix(v, "PARLEY_") }
	s.process.Env = slices.DeleteFunc(s.process.Environ(), ours)
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // With its wrapper, for kill.
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
		_ = s.process.Wait() // ProcessState tells.
	}()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("parleyd on %s ended with %v and wrote:\n%s", dataDir, s.process.ProcessState, quote(s.wrote()))
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

// wrote returns what the process has written on standard error so far.
func (s *server) wrote() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// serves waits until the server serves; an error when it ends without.
func (s *server) serves(t *testing.T) error {
	t.Helper()
	select {
	case address := <-s.serving:
		// Nothing is sent twice by the library itself: the clients count.
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			return err
		}
		s.conn = conn
		s.ConversationServiceClient, s.AdminServiceClient = parleyv1.NewConversationServiceClient(conn), parleyv1.NewAdminServiceClient(conn)
		return nil
	case <-s.ended:
		return fmt.Errorf("parleyd ended with %v:\n%s", s.process.ProcessState, quote(s.wrote()))
	case <-time.After(patience):
		return fmt.Errorf("parleyd does not serve within %v:\n%s", patience, quote(s.wrote()))
	}
}

// start starts parleyd and returns when it serves, which it must.
func start(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	s := launch(t, dataDir, nil, flags...)
	if err := s.serves(t); err != nil {
		t.Fatal(err)
	}
	return s
}

// kill ends the server, and its wrapper, as kill -9 does, and returns when they have gone. No
// call may be begun any more.
func (s *server) kill() {
	select {
	case <-s.ended: // Its number may be somebody else's by now.
	default:
		_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	}
	<-s.ended
	if s.conn != nil {
		s.conn.Close() // Else it looks for the server for as long as the test runs.
	}
}

// exit waits until the server ends by itself, and returns its exit code, -1 for a signal, and
// what it wrote on standard error.
func (s *server) exit(t *testing.T) (code int, stderr string) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatalf("parleyd does not end within %v:\n%s", patience, quote(s.wrote()))
	}
	return s.process.ProcessState.ExitCode(), s.wrote()
}

// stop asks the server to end, as an operator does, and waits for it; it must end well.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-s.process.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, stderr := s.exit(t); code != 0 {
		t.Errorf("parleyd ended with %d after SIGTERM:\n%s", code, quote(stderr))
	}
}
