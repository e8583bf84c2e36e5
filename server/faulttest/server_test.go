package faulttest

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// server is a parleyd process and, when it serves, a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	parleyv1.RecordServiceClient
	parleyv1.AdminServiceClient
	process *parleydtest.Process
	conn    *grpc.ClientConn
}

// launch starts parleyd on a data directory and a free port, and does not wait until it serves. The
// wrapper, if not nil, is a program with arguments that runs parleyd, for example strace. At the end
// of the test both are killed if they still run.
func launch(t *testing.T, dataDir string, wrapper []string, flags ...string) *server {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	command := parleydtest.Command(ctx, parleyd, dataDir, flags...)
	if wrapper != nil {
		wrapped := exec.CommandContext(ctx, wrapper[0], slices.Concat(wrapper[1:], command.Args)...)
		wrapped.Env = command.Env
		command = wrapped
	}
	// kill sends the signal to the group, which includes the wrapper.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process, err := parleydtest.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{process: process}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("parleyd on %s ended with %v, standard error:\n%s", dataDir, s.process.ProcessState, quote(s.output()))
		}
	})
	return s
}

// output returns the standard error of the process so far.
func (s *server) output() string { return s.process.Log.Text() }

// awaitServing waits until the server serves. It returns an error if the process ends before.
func (s *server) awaitServing() error {
	address, err := s.process.AwaitServing()
	if err != nil {
		return err
	}
	// Without retries by gRPC, each step is sent as often as the client counts.
	s.conn,
		err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		return err
	}
	s.ConversationServiceClient = parleyv1.NewConversationServiceClient(s.conn)
	s.RecordServiceClient = parleyv1.NewRecordServiceClient(s.conn)
	s.AdminServiceClient = parleyv1.NewAdminServiceClient(s.conn)
	return nil
}

// start starts parleyd and waits until it serves. The test fails if it does not.
func start(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	s := launch(t, dataDir, nil, flags...)
	if err := s.awaitServing(); err != nil {
		t.Fatal(err)
	}
	return s
}

// kill kills the server and its wrapper with SIGKILL, and returns when both have ended. No call may
// start after it.
func (s *server) kill() {
	select {
	case <-s.process.Ended(): // Another process may have its id now.
	default:
		_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	}
	<-s.process.Ended()
	if s.conn != nil {
		s.conn.Close() // An open connection would try to reconnect until the test ends.
	}
}

// awaitExit waits until the server ends without a signal. It returns the exit code, -1 for a signal, and
// the standard error.
func (s *server) awaitExit(t *testing.T) (code int, stderr string) {
	t.Helper()
	if err := s.awaitEnd(); err != nil {
		t.Fatal(err)
	}
	return s.process.ProcessState.ExitCode(), s.output()
}

// awaitEnd waits until the server ends. It returns an error if that takes too long.
func (s *server) awaitEnd() error {
	select {
	case <-s.process.Ended():
		return nil
	case <-time.After(testTimeout):
		return fmt.Errorf("parleyd did not end within %v:\n%s", testTimeout, quote(s.output()))
	}
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
