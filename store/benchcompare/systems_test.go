package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

// TestMain is also what runCeiling's process runs in tests.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serveCeiling {
		if err := runCeiling(context.Background(), os.Args[2], os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// newDir is a directory that other users may pass through, since PostgreSQL runs as one.
func newDir(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()                       // See startProcess.
	dir, err := os.MkdirTemp("", "benchcompare") //nolint:usetesting // Others may not pass through t.TempDir.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// buildParley builds the program of this service.
func buildParley(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "parleyd")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./server")
	build.Dir = "../.."
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return program
}

// TestRivals starts each rival, fills it, and has it checked as a run does.
func TestRivals(t *testing.T) {
	for _, rival := range rivals() {
		t.Run(rival.name, func(t *testing.T) {
			dir := filepath.Join(newDir(t), "rival")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			s, version, err := rival.start(t.Context(), dir)
			if missing, ok := errors.AsType[*missingError](err); ok {
				t.Skip("NOT RUN: ", missing)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			if version == "" || strings.Contains(version, "unknown") {
				t.Errorf("version %q", version)
			}
			testSystem(t, s)
		})
	}
}

// testSystem fills a system and checks it.
func testSystem(t *testing.T, s system) {
	t.Helper()
	const filled = 130 // more than one step
	if err := s.fill(t.Context(), filled); err != nil {
		t.Fatal(err)
	}
	for i := range filled {
		messages, err := s.read(t.Context(), conversationID(i))
		if err != nil || len(messages) != keep || messages[0] != message(messageBytes) {
			t.Fatalf("conversation %d was filled with %d messages: %v", i, len(messages), err)
		}
	}
	// One that was filled goes on as any other.
	id := conversationID(filled / 2)
	if err := s.append(t.Context(), id, numbered(0, 0)); err != nil {
		t.Fatal(err)
	}
	messages, err := s.read(t.Context(), id)
	if err != nil || len(messages) != keep || messages[keep-1] != numbered(0, 0) || messages[keep-2] != message(messageBytes) {
		t.Errorf("a filled conversation has %d messages after an append: %v", len(messages), err)
	}
	if err := check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestStoreInProcess is the same of our own store.
func TestStoreInProcess(t *testing.T) {
	b, err := openBolt(newDir(t))
	if err != nil {
		t.Fatal(err)
	}
	testSystem(t, b)
	if err := b.close(); err != nil {
		t.Error(err)
	}
}

// TestReadReplyBytes holds the replies of empty calls to the size of those that they stand
// for.
func TestReadReplyBytes(t *testing.T) {
	dir := newDir(t)
	if err := fillFile(t.Context(), dir, filling{count: 1, messageBytes: messageBytes, end: time.Now().Add(life)}); err != nil {
		t.Fatal(err)
	}
	p, err := startParley(t.Context(), buildParley(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	loaded, err1 := p.client.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: conversationID(0)})
	listed, err2 := p.client.ListAgents(t.Context(), &parleyv1.ListAgentsRequest{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	read := proto.Size(loaded)
	for name, size := range map[string]int{"without interceptors": readReplyBytes, "with all interceptors": proto.Size(listed)} {
		if size < read*97/100 || size > read*103/100 {
			t.Errorf("the empty call %s has a reply of %d B, a read one of %d B", name, size, read)
		}
	}
}

// TestProcess tells of a program that does not serve, and leaves none behind.
func TestProcess(t *testing.T) {
	dir := newDir(t)
	for name, c := range map[string]struct {
		script, want string
	}{
		"ends":      {"echo no room >&2; exit 3", "exit status 3"},
		"last word": {"echo no room >&2; exit 3", "it said: no room"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := startProcess(dir, nil, "/bin/sh", "-c", c.script)
			if err != nil {
				t.Fatal(err)
			}
			err = p.until(t.Context(), func(context.Context) error { return errors.New("nobody answers") })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("until: %v, want %q in it", err, c.want)
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		p, err := startProcess(dir, nil, "/bin/sh", "-c", "exec sleep 1000")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = p.until(ctx, func(context.Context) error {
			cancel()
			return errors.New("nobody answers")
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("until: %v", err)
		}
		if err := syscall.Kill(p.pid(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("it is still there: %v", err)
		}
	})
	if _, err := startProcess(dir, nil, filepath.Join(dir, "missing")); err == nil {
		t.Error("a program that does not exist was started")
	}
}

// TestRun is a short run as a whole: it measures, writes its table, and leaves nothing.
func TestRun(t *testing.T) {
	dir := newDir(t)
	s := settings{
		parleyd: buildParley(t), dir: dir, rounds: 2, slice: 100 * time.Millisecond,
		conversations: 300, small: 100, large: 400, expired: 500, only: ownOnly(), date: "today",
	}
	var table strings.Builder
	if err := run(t.Context(), s, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Measured today", "| " + service + " |", "| " + chainedCall + " |", "| " + sized(400) + " |", "while 500 expired"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in the table:\n%s", want, table.String())
		}
	}
	for line := range strings.Lines(table.String()) {
		if strings.Contains(line, "not measured") && !strings.Contains(line, "etcd") {
			t.Error(line)
		}
	}
	empty(t, dir)
}

// TestRunEnds ends a run when it has hardly begun.
func TestRunEnds(t *testing.T) {
	dir := newDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := settings{
		parleyd: buildParley(t), dir: dir, rounds: 1, slice: time.Minute,
		conversations: 100, small: 50, large: 200, only: ownOnly(),
	}
	err := run(ctx, s, io.Discard, cancelling(cancel))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
	empty(t, dir)
}

// cancelling cancels when everything is ready.
type cancelling context.CancelFunc

func (c cancelling) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), "all are ready") {
		c()
	}
	return len(p), nil
}

// empty checks that a run has removed what it had made.
func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%d files are left: %v", len(left), err)
	}
}

// ownOnly is for runs without rivals.
func ownOnly() *regexp.Regexp { return regexp.MustCompile("service|store|call") }
