// Package e2e tests the program parleyd from outside: through its APIs, its files, its log and its exit
// code. Start at [startServer].
package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/parleyhq/parley/client/buildinfo"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/app"
	"github.com/parleyhq/parley/server/parleydtest"
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

// timeout is how long a test waits for an expected event. Only a failing test takes that long.
const timeout = parleydtest.Timeout

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		go reportUsage()
		app.Main(buildinfo.Info{Version: "dev"})
	}
	if target := os.Getenv(asEphemeralClients); target != "" {
		runEphemeralClients(target)
	}
	raiseParallelism()
	os.Exit(m.Run())
}

// parallelTests is the number of tests that run in parallel with -short, and parallelLongTests without it, unless
// -parallel is set. Most of these wait for the server, for the disk, or for 15 s for the lease of a server. The others
// load both processors, and some of them measure the time of a stop.
const (
	parallelTests     = 8
	parallelLongTests = 3
)

func raiseParallelism() {
	const parallel = "test.parallel"
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == parallel })
	if isSet {
		return
	}
	tests := parallelLongTests
	if testing.Short() {
		tests = parallelTests
	}
	if err := flag.Set(parallel, strconv.Itoa(max(tests, runtime.GOMAXPROCS(0)))); err != nil {
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
	cmd := parleydtest.Command(t.Context(), self, "", flags...)
	// By default the race detector sleeps for a second at exit, which would exceed the time of a stop.
	cmd.Env = append(cmd.Env, asServer+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// server is a running parleyd and a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	parleyv1.AdminServiceClient
	conn    *grpc.ClientConn
	process *parleydtest.Process
	log     *parleydtest.Log
	// writesText is set if the server writes text other than log entries, as the test expects.
	writesText bool
}

// startServer starts parleyd on a data directory and returns when it serves. At the end of the test
// the server is killed if it still runs. The test fails if the server wrote anything other than log
// entries.
func startServer(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	return startProcess(t, parleyd(t, append([]string{"--data-dir=" + dataDir}, flags...)...))
}

// startProcess is like startServer for a command that the test has built.
func startProcess(t *testing.T, command *exec.Cmd) *server {
	t.Helper()
	s := startUnconnected(t, command)
	s.connect(t, fmt.Sprint(s.await(t, "serving grpc")["address"]), false)
	return s
}

// startUnconnected is like startProcess, but does not wait until the server serves. The caller may call
// connect.
func startUnconnected(t *testing.T, command *exec.Cmd) *server {
	t.Helper()
	process, err := parleydtest.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{process: process, log: &process.Log}
	t.Cleanup(func() {
		s.kill()
		if found, _ := s.log.Find(parleydtest.NotAnEntry); len(found) > 0 && !s.writesText {
			t.Error("the server wrote text that is not a log entry")
		}
		if t.Failed() {
			t.Logf("the server ended with %v; its log:\n%s", process.ProcessState, s.log.Text())
		}
	})
	return s
}

// connect connects the client of s. If waitForReady is set, calls wait until the server listens.
func (s *server) connect(t *testing.T, target string, waitForReady bool) {
	t.Helper()
	methods := fmt.Sprintf(`{"methodConfig": [{"name": [{}], "waitForReady": %t, "timeout": "%.0fs"}]}`,
		waitForReady, timeout.Seconds())
	var err error
	if s.conn, err = grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(methods)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	s.ConversationServiceClient = parleyv1.NewConversationServiceClient(s.conn)
	s.AdminServiceClient = parleyv1.NewAdminServiceClient(s.conn)
}

// kill ends the server as kill -9 does.
func (s *server) kill() { s.process.Kill() }

// terminate asks the server to stop.
func (s *server) terminate() { _ = s.process.Process.Signal(syscall.SIGTERM) }

// wantStop waits for the server to end. The test fails unless the exit code is 0.
func (s *server) wantStop(t *testing.T) {
	t.Helper()
	<-s.process.Ended() // The server limits the time of a stop itself; see server/internal/app/stop.go.
	state := s.process.ProcessState
	if found, _ := s.log.Find("stopped"); state.ExitCode() == exitIO && len(found) > 0 {
		// On a busy machine, the time limit of the stop may end the process while it closes the store. After an error it
		// would have written text that is not a log entry, which fails the test.
		t.Log("the time limit of the stop ended the server while it closed the store")
	} else if state.ExitCode() != 0 {
		t.Errorf("server stopped with %v, want exit code 0", state)
	}
}

// await waits for a log entry with this message and these fields, as "key=value", and returns the
// first one.
func (s *server) await(t *testing.T, message string, fields ...string) parleydtest.Entry {
	t.Helper()
	entry, err := s.process.Await(message, fields...)
	if err != nil { // It contains the log, which the test prints at its end.
		t.Fatalf("no log entry %q %q", message, fields)
	}
	return entry
}

// skipShort skips a long test with -short.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a long test")
	}
}
