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

// On a full disk nothing new is taken, but what runs ends well: answers are kept, reads and
// deletes go on; and so do writes when there is room again.
func TestFullDisk(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			for range rounds(1, 10) {
				f := newFull(t, kind, nil)
				f.fill(t, 100_000)
				f.isFull(t)
				close(f.agent.release)
				if err := f.answered(patience); err != nil {
					t.Fatal(err)
				}
				counts.add(t, "answers kept on a full disk", len(f.turns))
				f.isFull(t)
				f.makeRoom(t)
				f.isWhole(t)
			}
		})
	}
}

// Where another program has taken every byte, the server still goes on.
func TestFullDiskOfOthers(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			f := newFull(t, kind, nil)
			close(f.agent.release)
			if err := f.answered(patience); err != nil {
				t.Fatal(err)
			}
			f.fill(t, 100_000)
			ballast := f.ballast(t)
			f.isFull(t)
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			f.makeRoom(t)
			f.isWhole(t)
		})
	}
}

// The control: a server that keeps no room for answers has none when they come, and it shows.
func TestFullDiskWithoutReserve(t *testing.T) {
	greedy := buildWith(t, "store/boltstore/space.go", "err != nil || free >= reserve", "err != nil || free >= 0")
	const (
		most   = 10              // How large the last gap is, chance decides.
		moment = 3 * time.Second // far more than they take otherwise
	)
	for range most {
		f := newFull(t, "tmpfs", greedy)
		f.fill(t, 10_000)
		close(f.agent.release)
		if f.answered(moment) != nil {
			counts.add(t, "control: servers without room for an answer", 1)
			return
		}
	}
	t.Error("without a reserve all answers find room: the test of full disks proves nothing")
}

// full is a server whose disk is small, its clients, and turns that run on it.
type full struct {
	*server
	dataDir string
	wrapper []string
	flag    string
	agent   *holder
	clients []*client
	turns   []chan error // a value when each has ended
	large   []string     // conversations that fill the disk
	stop    context.CancelFunc
}

// newFull starts a server, which the wrapper may replace, on a small disk.
func newFull(t *testing.T, kind string, wrapper []string) *full {
	t.Helper()
	f := &full{dataDir: filepath.Join(smallDisk(t, kind), "data"), wrapper: wrapper, clients: newClients(4, 8)}
	f.agent, f.flag = withHolder(t)
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
			t.Fatalf("a turn ends before its agent does: %v", err)
		}
	}
	return f
}

func (f *full) launch(t *testing.T) {
	t.Helper()
	f.server = launch(t, f.dataDir, f.wrapper, f.flag, "--max-conversations=0")
	if err := f.serves(t); err != nil {
		t.Fatal(err)
	}
}

// turn has the agent answer, and says what is wrong with what is kept of it.
func (f *full) turn(ctx context.Context, id string, started chan<- struct{}) error {
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
			want := conversation{}.with(user("question")).with(message{role: parleyv1.Role_ROLE_ASSISTANT, words: f.agent.answer})
			if err == nil && !same(got, want) {
				err = errors.New(difference(got, want))
			}
			return err
		}
	}
	return err
}

// answered waits for the ends of all turns.
func (f *full) answered(limit time.Duration) error {
	late := time.After(limit)
	for _, turn := range f.turns {
		select {
		case err := <-turn:
			if err != nil {
				return err
			}
		case <-late:
			return fmt.Errorf("no answer within %v", limit)
		}
	}
	return nil
}

// fill appends until the server takes no more, first what is large, then less, to the
// smallest size.
func (f *full) fill(t *testing.T, smallest int) {
	t.Helper()
	const most = 10_000
	for size := 100_000; size >= smallest; size /= 10 {
		for n := 0; ; n++ {
			id := fmt.Sprintf("large-%d-%d", size, n/maxMessages)
			err := f.append(t.Context(), id, strings.Repeat("x", size))
			if err == nil && !slices.Contains(f.large, id) {
				f.large = append(f.large, id)
			}
			if refusedFor(err) == "STORE_FULL" {
				break
			}
			if err != nil || n == most {
				t.Fatalf("append %d of %d bytes to a disk that gets full: %v", n, size, err)
			}
			counts.add(t, "appends until the disk was full", 1)
		}
	}
}

func (f *full) append(ctx context.Context, id, words string) error {
	_, err := f.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: words}},
	})
	return err
}

// refusedFor is the reason of a refusal for want of room, empty for anything else.
func refusedFor(err error) string {
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

// isFull has the clients go on: what is refused leaves no trace, and all that there is can be
// read. Now and then something small may find room.
func (f *full) isFull(t *testing.T) {
	t.Helper()
	for _, c := range f.clients {
		err := c.do(t.Context(), f.server, c.next())
		switch {
		case refusedFor(err) == "STORE_FULL":
			c.note(progress{has: c.state.has})
			counts.add(t, "steps refused", 1)
		case err != nil:
			t.Errorf("on a full disk: %v", err)
		}
		got, err := observe(t.Context(), f.server, c.id)
		if err != nil {
			t.Fatal(err)
		}
		if !same(got, c.state.has) {
			t.Errorf("on a full disk %s: %s", c.id, difference(got, c.state.has))
		}
	}
	if _, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{PageSize: 1000}); err != nil {
		t.Error(err)
	}
}

func (f *full) remove(t *testing.T, id string) {
	t.Helper()
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id}); err != nil {
		t.Fatalf("delete on a full disk: %v", err)
	}
	counts.add(t, "deletes on a full disk", 1)
}

// makeRoom deletes what fills the disk, and checks that the clients can go on.
func (f *full) makeRoom(t *testing.T) {
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
				t.Fatalf("with room again: %v", err)
			}
			counts.add(t, "steps with room again", 1)
		}
	}
}

// isWhole kills the server and looks at what is there.
func (f *full) isWhole(t *testing.T) {
	t.Helper()
	f.stop()
	f.kill()
	f.launch(t)
	if err := recoverAll(t, f.server, f.clients); err != nil {
		t.Fatal(err)
	}
	f.server.stop(t)
}

// ballast takes all that is left of the disk.
func (f *full) ballast(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(filepath.Dir(f.dataDir), "ballast")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2 // It may have been too much at once.
		}
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

// smallDisk is a directory on a disk of its own, until the end of the test.
func smallDisk(t *testing.T, kind string) string {
	t.Helper()
	needRoot(t)
	need(t, "mount", "mount")
	const size = 64 << 20
	dir := t.TempDir()
	mount := []string{"-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size), "tmpfs", dir}
	if kind == "ext4" {
		need(t, "mkfs.ext4", "e2fsprogs")
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
		lacks(t, "this machine mounts no small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount:", err)
		}
	})
	return dir
}
