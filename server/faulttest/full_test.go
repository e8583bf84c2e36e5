package faulttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestFullDisk checks the server on a full disk. Writes that need space are rejected. Running turns
// end and their answers are stored. Reads and deletes continue. When space is free again, writes
// continue.
func TestFullDisk(t *testing.T) {
	for _, kind := range fullDisks() {
		t.Run(kind.name(), func(t *testing.T) {
			for range rounds(1, 10) {
				f := newFullServer(t, kind, nil)
				f.fill(t, 100_000)
				f.checkFull(t)
				close(f.agent.release)
				if err := f.awaitTurns(testTimeout); err != nil {
					t.Fatal(err)
				}
				counts.add(t, "answers stored on a full disk", len(f.turns))
				f.checkFull(t)
				f.freeSpace(t)
				f.checkAfterKill(t)
			}
		})
	}
}

// TestFullDiskOfOthers checks that the server continues if another program has used all space.
func TestFullDiskOfOthers(t *testing.T) {
	for _, kind := range fullDisks() {
		t.Run(kind.name(), func(t *testing.T) {
			f := newFullServer(t, kind, nil)
			close(f.agent.release)
			if err := f.awaitTurns(testTimeout); err != nil {
				t.Fatal(err)
			}
			f.fill(t, 100_000)
			filler := f.fillDisk(t)
			f.checkFull(t)
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			f.freeSpace(t)
			f.checkAfterKill(t)
		})
	}
}

// TestStoppedOnFullDisk checks that a server which stops in order on a full disk leaves what it cannot fold in the journal,
// and that a start has everything, also while the disk is full.
func TestStoppedOnFullDisk(t *testing.T) {
	f := newFullServer(t, fullDisk{"tmpfs", "--journal-budget=256MiB"}, nil)
	close(f.agent.release)
	if err := f.awaitTurns(testTimeout); err != nil {
		t.Fatal(err)
	}
	for n := range 4 * maxMessages {
		if err := f.append(t.Context(), fmt.Sprint("large", n%4), strings.Repeat("x", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	f.large = []string{"large0", "large1", "large2", "large3"}
	filler := f.fillDisk(t)
	f.server.stop(t)
	if code, out := check(t, filepath.Join(f.dataDir, fileName)); code != 0 {
		t.Errorf("parleyd check after a stop on a full disk = exit code %d; output:\n%s", code, quote(out))
	}

	// Without the journal, the file is not complete.
	dataDir := t.TempDir()
	copyOver(t, f.dataDir, dataDir)
	journal, _ := journalOf(t, dataDir)
	if err := os.RemoveAll(journal); err != nil {
		t.Fatal(err)
	}
	if err := wantRefusedFile(t, launch(t, dataDir, nil), filepath.Join(dataDir, fileName)); err != nil {
		t.Error("without the journal: ", err)
	}

	f.launch(t)
	for _, c := range f.clients {
		if _, err := c.verify(t.Context(), f.server); err != nil {
			t.Error("on the full disk: ", err)
		}
	}
	counts.add(t, "stops and starts on a full disk", 1)
	f.server.stop(t)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	f.launch(t)
	f.freeSpace(t)
	f.checkAfterKill(t)
}

// TestFullDiskWithoutReserve is the control: a server without reserved space cannot store answers, and
// the check detects it.
func TestFullDiskWithoutReserve(t *testing.T) {
	const file = "store/boltstore/internal/boltfile/reserve.go"
	unreserved := buildWith(t, file, "err != nil || free >= reserve", "err != nil || free >= 0")
	const (
		attempts = 10              // The size of the remaining space is random.
		limit    = 3 * time.Second // much longer than turns take with a reserve
	)
	for range attempts {
		f := newFullServer(t, fullDisk{"tmpfs", noJournal}, unreserved)
		f.fill(t, 10_000)
		close(f.agent.release)
		if f.awaitTurns(limit) != nil {
			counts.add(t, "control: servers without space for an answer", 1)
			return
		}
	}
	t.Error("all answers were stored without a reserve; the test of full disks proves nothing")
}

// fullDisk is a small disk that gets full, and the setting of the journal on it.
type fullDisk struct{ kind, journal string }

func (d fullDisk) name() string { return d.kind + " " + strings.TrimPrefix(d.journal, "--journal-") }

// fullDisks returns the disks that are tested. The budget of a journal by default is larger than the disk.
func fullDisks() []fullDisk {
	const largeJournal = "--journal-budget=256MiB"
	return []fullDisk{{"tmpfs", noJournal}, {"ext4", smallJournal}, {"tmpfs", largeJournal}, {"ext4", largeJournal}}
}

// fullServer is a server on a small disk, with its clients and running turns.
type fullServer struct {
	*server
	dataDir string
	wrapper []string
	flags   []string
	agent   *holder
	clients []*client
	turns   []chan error // Each channel receives the result of a turn.
	large   []string     // conversations that fill the disk
	stop    context.CancelFunc
}

// newFullServer starts a server on a small disk, and turns on it. The wrapper may replace the server's
// program.
func newFullServer(t *testing.T, disk fullDisk, wrapper []string) *fullServer {
	t.Helper()
	dataDir := filepath.Join(mountSmallDisk(t, disk.kind), "data")
	f := &fullServer{dataDir: dataDir, wrapper: wrapper, clients: newClients(4, 8)}
	agent, flag := withHolder(t)
	f.agent, f.flags = agent, []string{flag, disk.journal, "--max-conversations=0"}
	f.launch(t)
	for range 20 {
		for _, c := range f.clients {
			if err := c.do(t.Context(), f.server, c.next()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	f.stop = stop
	const turns = 8
	for i := range turns {
		started, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- f.turn(ctx, fmt.Sprint("turn", i), started) }()
		f.turns = append(f.turns, ended)
		select {
		case <-started:
		case err := <-ended:
			t.Fatalf("turn ended before its agent: %v", err)
		}
	}
	return f
}

func (f *fullServer) launch(t *testing.T) {
	t.Helper()
	f.server = launch(t, f.dataDir, f.wrapper, f.flags...)
	if err := f.awaitServing(); err != nil {
		t.Fatal(err)
	}
}

// turn runs a turn and checks that the complete answer is stored.
func (f *fullServer) turn(ctx context.Context, id string, started chan<- struct{}) error {
	stream, err := f.Chat(ctx, &parleyv1.ChatRequest{ConversationId: id, Content: "question", Agent: holdingAgent})
	for err == nil {
		var reply *parleyv1.ChatResponse
		if reply, err = stream.Recv(); err != nil {
			break
		}
		if reply.GetEvent().GetStarted() != nil {
			close(started)
		}
		if reply.GetEvent().GetFinished() != nil {
			got, err := observe(ctx, f.server, id)
			want := conversation{}.with(userMessage("question")).with(message{
				role: parleyv1.Role_ROLE_ASSISTANT, content: f.agent.answer,
			})
			if err == nil && !equal(got, want) {
				err = errors.New(diff(got, want))
			}
			return err
		}
	}
	return err
}

// awaitTurns waits for the ends of all turns.
func (f *fullServer) awaitTurns(limit time.Duration) error {
	late := time.After(limit)
	for _, turn := range f.turns {
		select {
		case err := <-turn:
			if err != nil {
				return err
			}
		case <-late:
			return fmt.Errorf("turn did not end within %v", limit)
		}
	}
	return nil
}

// fill appends messages of decreasing sizes, down to smallest bytes, until the server rejects each size.
func (f *fullServer) fill(t *testing.T, smallest int) {
	t.Helper()
	const maxAppends = 10_000
	for size := 100_000; size >= smallest; size /= 10 {
		for n := 0; ; n++ {
			id := fmt.Sprintf("large-%d-%d", size, n/maxMessages)
			err := f.append(t.Context(), id, strings.Repeat("x", size))
			if err == nil && !slices.Contains(f.large, id) {
				f.large = append(f.large, id)
			}
			if refusalReason(err) == "STORE_FULL" {
				break
			}
			if err != nil || n == maxAppends {
				t.Fatalf("append %d of %d bytes: %v, want success or STORE_FULL", n, size, err)
			}
			counts.add(t, "appendStep until the disk was full", 1)
		}
	}
}

func (f *fullServer) append(ctx context.Context, id, content string) error {
	_, err := f.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
	})
	return err
}

// refusalReason returns the reason of a RESOURCE_EXHAUSTED error, and "" for any other error.
func refusalReason(err error) string {
	if status.Code(err) != codes.ResourceExhausted {
		return ""
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// checkFull lets the clients continue on the full disk. A rejected step must change nothing, and all
// conversations must be readable. A small step may still succeed.
func (f *fullServer) checkFull(t *testing.T) {
	t.Helper()
	for _, c := range f.clients {
		err := c.do(t.Context(), f.server, c.next())
		switch {
		case refusalReason(err) == "STORE_FULL":
			c.setProgress(progress{acknowledged: c.state.acknowledged})
			counts.add(t, "steps refused", 1)
		case err != nil:
			t.Errorf("step on a full disk: %v, want success or STORE_FULL", err)
		}
		got, err := observe(t.Context(), f.server, c.id)
		if err != nil {
			t.Fatal(err)
		}
		if !equal(got, c.state.acknowledged) {
			t.Errorf("%s on a full disk: %s", c.id, diff(got, c.state.acknowledged))
		}
	}
	if _, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{PageSize: 1000}); err != nil {
		t.Error(err)
	}
}

func (f *fullServer) remove(t *testing.T, id string) {
	t.Helper()
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id}); err != nil {
		t.Fatalf("delete on a full disk: %v", err)
	}
	counts.add(t, "deletes on a full disk", 1)
}

// freeSpace deletes the conversations that fill the disk, and checks that the clients can continue.
func (f *fullServer) freeSpace(t *testing.T) {
	t.Helper()
	for _, id := range f.large {
		f.remove(t, id)
	}
	for i := range f.turns {
		f.remove(t, fmt.Sprint("turn", i))
	}
	for range 20 {
		for _, c := range f.clients {
			if err := c.do(t.Context(), f.server, c.next()); err != nil {
				t.Fatalf("step with free space: %v", err)
			}
			counts.add(t, "steps with free space", 1)
		}
	}
}

// checkAfterKill kills the server, starts it again and verifies all clients.
func (f *fullServer) checkAfterKill(t *testing.T) {
	t.Helper()
	f.stop()
	f.kill()
	f.launch(t)
	if err := verifyAll(t, f.server, f.clients); err != nil {
		t.Fatal(err)
	}
	f.server.stop(t)
}

// fillDisk writes a file that uses all remaining space of the disk, and returns its path.
func (f *fullServer) fillDisk(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(filepath.Dir(f.dataDir), "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2 // A smaller write may still fit.
		}
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

// mountSmallDisk mounts a small file system until the end of the test, and returns its directory.
func mountSmallDisk(t *testing.T, kind string) string {
	t.Helper()
	requireRoot(t)
	requireProgram(t, "mount", "mount")
	const size = 64 << 20
	dir := t.TempDir()
	mount := []string{"-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size), "tmpfs", dir}
	if kind == "ext4" {
		requireProgram(t, "mkfs.ext4", "e2fsprogs")
		image := filepath.Join(t.TempDir(), "disk")
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
			t.Fatal(err)
		}
		if err := command(t, "mkfs.ext4", "-q", "-F", image); err != nil {
			t.Fatal(err)
		}
		mount = []string{"-t", "ext4", "-o", "loop", image, dir}
	}
	if err := command(t, "mount", mount...); err != nil {
		skipTest(t, "machine cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount:", err)
		}
	})
	return dir
}
