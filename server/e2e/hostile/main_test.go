// Package hostile tests the program parleyd with clients that break the protocols or exhaust it. During each
// attack, another client is served. After it, the server uses no more memory, goroutines and files than
// before. Start at [TestGRPC] and [TestHTTP].
package hostile

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/parleyhq/parley/client/buildinfo"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/app"
	"github.com/parleyhq/parley/server/parleydtest"
)

const (
	// asServer is an environment variable that makes the test binary run as parleyd.
	asServer = "RUN_AS_PARLEYD"
	// timeout is how long a test waits for an expected event. Only a failing test takes that long. The race detector
	// slows the server down, too.
	timeout = raceFactor * parleydtest.Timeout
)

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		go reportUsage()
		app.Main(buildinfo.Info{Version: "dev"})
	}
	os.Exit(m.Run())
}

// reportUsage logs the usage of the process, after a garbage collection, at each SIGUSR1.
func reportUsage() {
	requests := make(chan os.Signal, 1)
	signal.Notify(requests, syscall.SIGUSR1)
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	for n := 1; ; n++ {
		<-requests
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		log.Info("usage", "n", n, "goroutines", runtime.NumGoroutine(), "heap", m.HeapAlloc)
	}
}

// usage is what a server uses.
type usage struct{ goroutines, heap, files int }

// limits returns the maximum increase of a server's usage by an attack: buffers of pools that the garbage
// collector has not released yet, and connections of the other client.
func limits() usage { return usage{goroutines: 20, heap: 12 << 20, files: 8} }

// maxPeakBytes is the maximum memory of the process (VmHWM) during any attack: that of large requests, twice,
// since the garbage collector doubles a heap, and that of their encoded form. With the race detector it is raceFactor
// times that.
const maxPeakBytes = 900 << 20

// server is a running parleyd, with the other client.
type server struct {
	parleyv1.ConversationServiceClient

	process        *parleydtest.Process
	grpcAddr, http string // addresses
	reports        int    // of usage
}

// startServer starts parleyd with both listeners and the store in memory. If withTLS is set, both use TLS.
func startServer(t *testing.T, withTLS bool) *server {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if !withTLS {
		return startProgram(t, path, insecure.NewCredentials())
	}
	signIn, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := signIn.ClientTLS(false)
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, path, credentials.NewTLS(config), signIn.ServerFlags()...)
}

// startProgram is like startServer for a program that the test has built.
func startProgram(
	t *testing.T, path string, client credentials.TransportCredentials, flags ...string,
) *server {
	t.Helper()
	cmd := parleydtest.Command(t.Context(), path, "",
		append([]string{"--store=memory", "--http-address=127.0.0.1:0"}, flags...)...)
	cmd.Env = append(cmd.Env, asServer+"=1", "GORACE=atexit_sleep_ms=0")
	s := new(server)
	var err error
	if s.process, err = parleydtest.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.process.Kill()
		texts, _ := s.process.Log.Find(parleydtest.NotAnEntry)
		for _, entry := range texts { // For example the report of a race, line by line.
			t.Errorf("the server wrote text that is not a log entry: %s", entry["text"])
		}
	})
	if s.grpcAddr, err = s.process.AwaitServing(); err != nil {
		t.Fatal(err)
	}
	s.http = fmt.Sprint(s.await(t, "serving http")["address"])
	conn, err := grpc.NewClient(s.grpcAddr, grpc.WithTransportCredentials(client))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.ConversationServiceClient = parleyv1.NewConversationServiceClient(conn)
	return s
}

func (s *server) await(t *testing.T, message string, fields ...string) parleydtest.Entry {
	t.Helper()
	entry, err := s.process.Await(message, fields...)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// usage makes the server log its usage and returns it.
func (s *server) usage(t *testing.T) usage {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	s.reports++
	entry := s.await(t, "usage", fmt.Sprint("n=", s.reports))
	number := func(key string) int {
		n, err := strconv.Atoi(fmt.Sprint(entry[key]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.Process.Pid))
	if err != nil {
		t.Skip("needs /proc: ", err)
	}
	return usage{goroutines: number("goroutines"), heap: number("heap"), files: len(files)}
}

// peakBytes returns the maximum memory of the process so far.
func (s *server) peakBytes(t *testing.T) int {
	t.Helper()
	return s.status(t, "VmHWM")
}

// status returns a size in bytes from the status of the process.
func (s *server) status(t *testing.T, key string) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); name == key {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("no %s in the status of the process", key)
	return 0
}

// awaitRelease waits until the server uses as much as before, within the limits.
func (s *server) awaitRelease(t *testing.T, before usage) {
	t.Helper()
	most := limits()
	for start := time.Now(); ; {
		got := s.usage(t)
		if got.goroutines <= before.goroutines+most.goroutines && got.heap <= before.heap+most.heap &&
			got.files <= before.files+most.files {
			t.Logf("usage %+v, before %+v; back after %v; peak %d MiB", got, before,
				time.Since(start).Round(time.Millisecond), s.peakBytes(t)>>20)
			return
		}
		if limit := releaseTime(); time.Since(start) > limit {
			t.Errorf("usage %v after the attack = %+v, want at most %+v more than before, %+v", limit, got, most, before)
			return
		}
	}
}

// releaseTime returns the time after an attack within which the usage must be as before: 5 s with PARLEY_LONG. Without
// it, other tests may load the machine, so the time is longer.
func releaseTime() time.Duration {
	if os.Getenv("PARLEY_LONG") != "" {
		return 5 * time.Second
	}
	return timeout
}

// skipShort skips a test with -short.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out with -short")
	}
}

// otherClient is a client that appends and reads until stop. The test fails if a call fails.
type otherClient struct {
	calls int
	stop  func()
}

func startOtherClient(t *testing.T, s *server) *otherClient {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := new(otherClient)
	var running sync.WaitGroup
	running.Go(func() {
		for ; ctx.Err() == nil; c.calls++ {
			if err := s.call(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("call %d of the other client: %v", c.calls, err)
				return
			}
		}
	})
	c.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(c.stop)
	return c
}

// call appends a message and reads it.
func (s *server) call(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout/2)
	defer cancel()
	if _, err := s.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: "other"}); err != nil {
		return err
	}
	if _, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: "other", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
	}); err != nil {
		return err
	}
	_, err := s.GetContext(ctx, &parleyv1.GetContextRequest{ConversationId: "other"})
	return err
}

// attack is a row of a table.
type attack struct {
	name string
	// run attacks the server and returns the status that the client received.
	run  func(t *testing.T, s *server) string
	want string
}

// test runs the attack on a server of its own, with TLS or without, and checks what it leaves.
func (a *attack) test(t *testing.T, withTLS bool) {
	t.Helper()
	t.Parallel()
	s := startServer(t, withTLS)
	for range 200 {
		if err := s.call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := s.usage(t)
	other := startOtherClient(t, s)
	if got := a.run(t, s); got != a.want {
		t.Errorf("status = %q, want %q", got, a.want)
	}
	other.stop()
	if other.calls == 0 {
		t.Error("the other client made no call")
	}
	s.awaitRelease(t, before)
	if peak := s.peakBytes(t); peak > raceFactor*maxPeakBytes {
		t.Errorf("peak memory = %d MiB, want at most %d MiB", peak>>20, raceFactor*maxPeakBytes>>20)
	}
	if err := s.call(t.Context()); err != nil {
		t.Errorf("call after the attack: %v", err)
	}
}
