// Package e2e tests the program parleyd from outside: through its APIs, its files, its log and its exit
// code. Start at [startServer].
package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/app"
)

// Exit codes of parleyd.
const (
	exitUsage   = 64
	exitDamaged = 65
	exitIO      = 74
	exitInUse   = 75
)

// storeName is the name of the store's file in the data directory.
const storeName = "parley.db"

// asServer is an environment variable that makes the test binary run as parleyd. Tests so start the
// program under test, with the race detector if they have it, and can kill it.
const asServer = "RUN_AS_PARLEYD"

// patience is how long a test waits for an expected event. Only a failing test takes that long.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		go reportUsage()
		app.Main("dev")
	}
	if target := os.Getenv(asSessions); target != "" {
		runSessions(target)
	}
	raiseParallelism()
	os.Exit(m.Run())
}

// parallelTests is the number of tests that run in parallel, unless -parallel is set. Most of the time,
// a test waits for the server or for the disk.
const parallelTests = 8

func raiseParallelism() {
	const parallel = "test.parallel"
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == parallel })
	if isSet {
		return
	}
	if err := flag.Set(parallel, strconv.Itoa(max(parallelTests, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
}

// parleyd returns a command that runs parleyd with these flags, on a free port and without HTTP.
func parleyd(t *testing.T, flags ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	flags = append([]string{"--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json"}, flags...)
	cmd := exec.CommandContext(t.Context(), self, flags...)
	ours := func(v string) bool { return strings.HasPrefix(v, "PARLEY_") }
	// By default the race detector sleeps for a second at exit, which would exceed the time of a stop.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), asServer+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// server is a running parleyd and a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	parleyv1.AdminServiceClient
	conn    *grpc.ClientConn
	process *exec.Cmd
	log     logLines
	ended   chan struct{} // closed when the process has ended and its output is read
}

// startServer starts parleyd on a data directory and returns when it serves. At the end of the test
// the server is killed if it still runs. The test fails if the server wrote anything other than log
// lines.
func startServer(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	return startProcess(t, parleyd(t, append([]string{"--data-dir=" + dataDir}, flags...)...))
}

// startProcess is like startServer for a command that the test has built.
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
		_ = s.process.Wait() // The error is in ProcessState.
	}()
	t.Cleanup(func() {
		s.kill()
		if found, _ := s.log.find(foreign); len(found) > 0 {
			t.Error("the server wrote text that is not a log line")
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
	s.ConversationServiceClient, s.AdminServiceClient = parleyv1.NewConversationServiceClient(s.conn),
		parleyv1.NewAdminServiceClient(s.conn)
	return s
}

// kill ends the server as kill -9 does.
func (s *server) kill() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// terminate asks the server to stop.
func (s *server) terminate() { _ = s.process.Process.Signal(syscall.SIGTERM) }

// wantStop waits for the server to end. The test fails unless the exit code is 0.
func (s *server) wantStop(t *testing.T) {
	t.Helper()
	<-s.ended // The server limits the time of a stop itself; see server/internal/app/stop.go.
	if state := s.process.ProcessState; state.ExitCode() != 0 {
		t.Errorf("server stopped with %v, want exit code 0", state)
	}
}

// await waits for a log line with this message and these fields, as "key=value", and returns the
// first one.
func (s *server) await(t *testing.T, message string, fields ...string) logLine {
	t.Helper()
	for late, alive := time.After(patience), true; ; {
		found, more := s.log.find(message, fields...)
		if len(found) > 0 {
			return found[0]
		}
		if !alive {
			t.Fatalf("no log line %q %q", message, fields)
		}
		select {
		case <-more:
		case <-s.ended:
			alive = false // The last entries may have arrived in the meantime: check again.
		case <-late:
			alive = false
		}
	}
}
