package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
	"github.com/parleyhq/parley/store/boltstore"
)

// TestMain runs the tests, or the ceiling process that tests start.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serveCeiling {
		if err := runCeiling(context.Background(), os.Args[2], os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// newDir returns a new directory that other users can enter, because PostgreSQL runs as another user.
func newDir(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()                       // See startProcess.
	dir, err := os.MkdirTemp("", "benchcompare") //nolint:usetesting // Other users cannot enter t.TempDir.
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

// buildParley builds parleyd and returns its path.
func buildParley(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "parleyd")
	if err := parleydtest.Build(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	return program
}

// TestCompetitors starts, fills and checks each competitor, as a run does.
func TestCompetitors(t *testing.T) {
	for _, competitor := range competitors() {
		t.Run(competitor.name, func(t *testing.T) {
			dir := filepath.Join(newDir(t), "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			s, version, err := competitor.start(t.Context(), dir)
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
				t.Errorf("version = %q, want a known one", version)
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
		if err != nil || len(messages) != maxMessages || messages[0] != message(messageBytes) {
			t.Fatalf("read(conversation %d) after fill = %d messages, %v; want %d", i, len(messages), err, maxMessages)
		}
	}
	// A filled conversation accepts appends.
	id := conversationID(filled / 2)
	if err := s.append(t.Context(), id, numbered(0, 0)); err != nil {
		t.Fatal(err)
	}
	messages, err := s.read(t.Context(), id)
	if err != nil || len(messages) != maxMessages || messages[maxMessages-1] != numbered(0, 0) ||
		messages[maxMessages-2] != message(messageBytes) {
		t.Errorf("read after fill and an append = %d messages, %v; want %d with the new one last", len(messages), err,
			maxMessages)
	}
	if err := check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestStoreInProcess fills and checks the store of this service.
func TestStoreInProcess(t *testing.T) {
	b, err := openBolt(newDir(t), boltstore.Options{JournalBudget: 1 << 20, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	testSystem(t, b)
	if err := b.close(); err != nil {
		t.Error(err)
	}
}

// TestReadReplyBytes checks that the replies of empty calls have the size of a reply to a read.
func TestReadReplyBytes(t *testing.T) {
	dir := newDir(t)
	if err := fillFile(t.Context(), dir, fillOptions{count: 1, messageBytes: messageBytes, end: time.Now().Add(ttl)}); err != nil {
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
	loaded, err1 := p.client.LoadConversation(t.Context(),
		&parleyv1.LoadConversationRequest{ConversationId: conversationID(0)})
	listed, err2 := p.client.ListAgents(t.Context(), &parleyv1.ListAgentsRequest{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	read := proto.Size(loaded)
	for name, size := range map[string]int{"without interceptors": readReplyBytes, "with all interceptors": proto.Size(listed)} {
		if size < read*97/100 || size > read*103/100 {
			t.Errorf("reply of the empty call %s = %d B, want about %d B as of a read", name, size, read)
		}
	}
}

// TestProcess checks the errors of a program that does not serve, and that the program is ended.
func TestProcess(t *testing.T) {
	dir := newDir(t)
	for name, c := range map[string]struct {
		script, want string
	}{
		"exit code": {"echo disk full >&2; exit 3", "exit status 3"},
		"output":    {"echo disk full >&2; exit 3", "output: disk full"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := startProcess(dir, nil, "/bin/sh", "-c", c.script)
			if err != nil {
				t.Fatal(err)
			}
			err = p.awaitReady(t.Context(), func(context.Context) error { return errors.New("not ready") })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("awaitReady() = %v, want %q in it", err, c.want)
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		p, err := startProcess(dir, nil, "/bin/sh", "-c", "exec sleep 1000")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = p.awaitReady(ctx, func(context.Context) error {
			cancel()
			return errors.New("not ready")
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("awaitReady() = %v, want %v", err, context.Canceled)
		}
		if err := syscall.Kill(p.pid(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("kill(%d, 0) after awaitReady = %v, want %v", p.pid(), err, syscall.ESRCH)
		}
	})
	if _, err := startProcess(dir, nil, filepath.Join(dir, "missing")); err == nil {
		t.Error("startProcess of a missing program succeeded, want an error")
	}
}

// TestRun makes a short run. It must measure, write its table, and leave no files.
func TestRun(t *testing.T) {
	dir := newDir(t)
	s := settings{
		parleyd: buildParley(t), dir: dir, rounds: 2, slice: 100 * time.Millisecond,
		conversations: 300, small: 100, large: 400, expired: 500, only: ownTargets(), date: "today",
	}
	var table strings.Builder
	if err := run(t.Context(), s, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Measured today", "| " + service + " |", "| " + chainedCall + " |", "| " + sizedName(400) + " |", "while 500 expired"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, table.String())
		}
	}
	for line := range strings.Lines(table.String()) {
		competitor := regexp.MustCompile("etcd|Redis|PostgreSQL").MatchString(line)
		if strings.Contains(line, "not measured") && !competitor {
			t.Errorf("goal is not measured: %s", line)
		}
	}
	wantEmpty(t, dir)
}

// TestRunEnds cancels a run when it starts to measure.
func TestRunEnds(t *testing.T) {
	dir := newDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := settings{
		parleyd: buildParley(t), dir: dir, rounds: 1, slice: time.Minute,
		conversations: 100, small: 50, large: 200, only: ownTargets(),
	}
	err := run(ctx, s, io.Discard, cancelWriter(cancel))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("run() = %v, want %v", err, context.Canceled)
	}
	wantEmpty(t, dir)
}

// cancelWriter calls the function when all targets are ready.
type cancelWriter context.CancelFunc

func (c cancelWriter) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), "all targets are ready") {
		c()
	}
	return len(p), nil
}

// wantEmpty checks that a run has removed its files.
func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("files left by a run = %d, %v; want 0", len(left), err)
	}
}

// ownTargets matches the measurements without competitors.
func ownTargets() *regexp.Regexp { return regexp.MustCompile("service|store|call|constant") }
