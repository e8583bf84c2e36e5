package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// sessionsEach is how many clients vanish in each way.
const sessionsEach = 50

// asSessions in the environment makes the test binary a program of so many clients, which
// says when they are there, and stays until it is killed.
const asSessions = "RUN_AS_SESSIONS"

// Clients that connect with delete_after_disconnect, chat, and vanish in four ways leave
// nothing behind.
func TestSessionMemoryEndsWithItsStream(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	// What nobody holds expires at once, and silence is noticed within seconds.
	flags := []string{"--ttl=100ms", "--keepalive-time=3s"}
	s := startServer(t, dataDir, flags...)
	hole := startHole(t, s.conn.Target())
	closed, cut, stay := make([]*session, sessionsEach), make([]*session, sessionsEach), make([]*session, sessionsEach)
	inParallel(sessionsEach, func(i int) {
		closed[i] = openSession(t, s.conn.Target(), fmt.Sprint("closed-", i), after(i))
		cut[i] = openSession(t, hole.listener.Addr().String(), fmt.Sprint("cut-", i), after(i))
		stay[i] = openSession(t, s.conn.Target(), fmt.Sprint("stay-", i), after(i))
	})
	killed := startSessions(t, s.conn.Target())
	if t.Failed() {
		t.FailNow()
	}
	// They have outlived their ttl when one that nobody holds has been swept.
	say(t, s, "nobodys", "hello")
	s.await(t, "conversation expired", "conversation_id=nobodys")
	for _, way := range []string{"closed", "cut", "stay", "killed"} {
		for i := range sessionsEach {
			wantHistory(t, s, fmt.Sprint(way, "-", i))
		}
	}
	if found, _ := s.log.find("ephemeral conversation deleted"); len(found) > 0 {
		t.Errorf("deleted while their streams are open: %v", found)
	}

	for i, c := range closed {
		if i%2 == 0 {
			c.leave() // ends the stream
		} else {
			c.conn.Close()
		}
	}
	killed()
	hole.cut.Store(true)
	for _, way := range []string{"closed", "cut", "killed"} {
		for i := range sessionsEach {
			s.await(t, "ephemeral conversation deleted", fmt.Sprint("conversation_id=", way, "-", i), "removed_messages=2")
		}
	}
	for i := range sessionsEach {
		wantHistory(t, s, fmt.Sprint("stay-", i))
	}
	s.terminate()
	s.wantStop(t)
	for _, c := range stay {
		if err := c.wait(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream of %s ends with %v", c.id, err)
		}
	}
	if found, _ := s.log.find("ephemeral conversation deleted"); len(found) != 3*sessionsEach {
		t.Errorf("%d deleted, of %d that have vanished", len(found), 3*sessionsEach)
	}

	s = startServer(t, dataDir, flags...)
	for i := range sessionsEach {
		s.await(t, "ephemeral conversation deleted", fmt.Sprint("conversation_id=stay-", i), "removed_messages=2")
	}
	list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || len(list.GetConversations()) != 0 || list.GetTotalSize() != 0 {
		t.Errorf("left are %v, %v", list, err)
	}
}

// after is when the memory of a client is to go.
func after(i int) time.Duration { return time.Duration(i%2) * 500 * time.Millisecond }

// One that comes back in time finds its history, also when the server was restarted, or
// killed, meanwhile.
func TestSessionMemoryWaitsForItsClient(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		away func(t *testing.T, s *server) (restarted bool)
	}{
		{"a while", func(*testing.T, *server) bool { return false }},
		{"a restart", func(t *testing.T, s *server) bool {
			t.Helper()
			s.terminate()
			s.wantStop(t)
			return true
		}},
		{"a crash", func(_ *testing.T, s *server) bool {
			s.kill()
			return true
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dataDir := t.TempDir()
			s := startServer(t, dataDir, "--ttl=100ms")
			first := openSession(t, s.conn.Target(), "c", time.Hour)
			second := openSession(t, s.conn.Target(), "c", time.Hour)
			first.leave() // The other one holds it.
			if test.name == "a while" {
				second.leave()
			}
			if test.away(t, s) {
				s = startServer(t, dataDir, "--ttl=100ms")
			}
			say(t, s, "nobodys", "hello")
			s.await(t, "conversation expired", "conversation_id=nobodys")
			back := watchSession(t, s.conn.Target(), "c", 0)
			if got := contents(history(t, s, "c").GetMessages()); strings.Count(got, "hello from c") != 4 {
				t.Errorf("the history is %q", got)
			}
			back.leave()
			s.await(t, "ephemeral conversation deleted", "conversation_id=c", "removed_messages=4")
			_, err := s.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c"})
			wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
		})
	}
}

// The end of a session cancels the turn that runs, and what is held is not evicted.
func TestSessionMemoryAndTheRest(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--max-conversations=2", agents(t, puppetAgents))
	held := openSession(t, s.conn.Target(), "held", 0)
	for i := range 5 {
		say(t, s, fmt.Sprint("other-", i), "hello")
	}
	wantHistory(t, s, "held")
	p := newPuppet(t, t.TempDir(), "pipe")
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "held", Content: p.path, Agent: "puppet"})
	p.start(t)
	held.leave()
	for {
		_, err := k.stream.Recv()
		if err != nil {
			wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
			break
		}
	}
	s.await(t, "ephemeral conversation deleted", "conversation_id=held", "removed_messages=3")
}

// session is a client whose conversation lives as long as its stream.
type session struct {
	id     string
	conn   *grpc.ClientConn
	stream grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	leave  context.CancelFunc
}

// openSession watches a conversation and then chats in it.
func openSession(t *testing.T, target, id string, deleteAfter time.Duration) *session {
	t.Helper()
	c := watchSession(t, target, id, deleteAfter)
	if err := c.chat(t.Context()); err != nil {
		t.Error(err)
	}
	return c
}

// watchSession returns when the session has begun.
func watchSession(t *testing.T, target, id string, deleteAfter time.Duration) *session {
	t.Helper()
	c, err := dialSession(t.Context(), target, id, deleteAfter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.leave()
		c.conn.Close()
	})
	return c
}

func dialSession(ctx context.Context, target, id string, deleteAfter time.Duration) (*session, error) {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	c := &session{id: id, conn: conn}
	ctx, c.leave = context.WithCancel(ctx)
	c.stream, err = parleyv1.NewConversationServiceClient(conn).WatchConversations(ctx, &parleyv1.WatchConversationsRequest{
		ConversationIds: []string{id}, DeleteAfterDisconnect: durationpb.New(deleteAfter),
	})
	if err != nil {
		return nil, err
	}
	first, err := c.stream.Recv()
	if err == nil && first.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
		err = fmt.Errorf("%s: the stream begins with %v", id, first)
	}
	return c, err
}

// chat says something and hears it again.
func (c *session) chat(ctx context.Context) error {
	stream, err := parleyv1.NewConversationServiceClient(c.conn).Chat(ctx, &parleyv1.ChatRequest{ConversationId: c.id, Content: "hello from " + c.id})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("chat in %s: %w", c.id, err)
	}
	return nil
}

// wait returns how the stream ends.
func (c *session) wait() error {
	for {
		if _, err := c.stream.Recv(); err != nil {
			return err
		}
	}
}

// wantHistory wants the words of a client and their echo.
func wantHistory(t *testing.T, s *server, id string) {
	t.Helper()
	if got := history(t, s, id).GetMessages(); len(got) != 2 {
		t.Errorf("the history of %s is %v", id, got)
	}
}

// startSessions starts a program of clients, and returns how to kill it.
func startSessions(t *testing.T, target string) (kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asSessions+"="+target)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != strconv.Itoa(sessionsEach)+"\n" {
		t.Fatalf("the clients say %q, %v", line, err)
	}
	return kill
}

// runSessions is that program.
func runSessions(target string) {
	var clients sync.WaitGroup
	var there atomic.Int64
	for i := range sessionsEach {
		clients.Go(func() {
			c, err := dialSession(context.Background(), target, fmt.Sprint("killed-", i), after(i))
			if err == nil {
				err = c.chat(context.Background())
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			there.Add(1)
		})
	}
	clients.Wait()
	fmt.Println(there.Load())
	_, _ = io.Copy(io.Discard, os.Stdin)
	select {}
}

// hole is a proxy that passes everything on until it is cut: then nothing comes through any
// more, and nobody is told.
type hole struct {
	listener net.Listener
	cut      atomic.Bool
	group    sync.WaitGroup
}

func startHole(t *testing.T, target string) *hole {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{listener: l}
	h.group.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				t.Error(err)
				client.Close()
				continue
			}
			t.Cleanup(func() {
				client.Close()
				server.Close()
			})
			h.group.Go(func() { _, _ = io.Copy(passing{h, server}, client) })
			h.group.Go(func() { _, _ = io.Copy(passing{h, client}, server) })
		}
	})
	t.Cleanup(func() { l.Close() })
	return h
}

// passing passes on what is written, or swallows it.
type passing struct {
	hole *hole
	to   io.Writer
}

func (p passing) Write(b []byte) (int, error) {
	if p.hole.cut.Load() {
		return len(b), nil
	}
	return p.to.Write(b)
}
