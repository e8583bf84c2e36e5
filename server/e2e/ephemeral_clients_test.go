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

// clientsPerWay is the number of clients that disconnect in each way.
const clientsPerWay = 50

// asEphemeralClients in the environment makes the test binary a program of clientsPerWay clients. It prints the
// number of connected clients and runs until it is killed.
const asEphemeralClients = "RUN_AS_EPHEMERAL_CLIENTS"

// TestEphemeralConversationEndsWithItsStream connects clients with delete_after_disconnect. They chat,
// and disconnect in four ways. Their conversations are deleted.
func TestEphemeralConversationEndsWithItsStream(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	// A conversation that no client holds expires at once. A client has 3 s to answer, and those that stay must do so.
	flags := []string{"--ttl=100ms", "--keepalive-time=9s"}
	s := startServer(t, dataDir, flags...)
	proxy := startSilentProxy(t, s.conn.Target())
	closed, cut, stay := make([]*ephemeralClient, clientsPerWay), make([]*ephemeralClient, clientsPerWay),
		make([]*ephemeralClient, clientsPerWay)
	inParallel(clientsPerWay, func(i int) {
		closed[i] = openEphemeral(t, s.conn.Target(), fmt.Sprint("closed-", i), deletionDelay(i))
		cut[i] = openEphemeral(t, proxy.listener.Addr().String(), fmt.Sprint("cut-", i), deletionDelay(i))
		stay[i] = openEphemeral(t, s.conn.Target(), fmt.Sprint("stay-", i), deletionDelay(i))
	})
	killed := startEphemeralClients(t, s.conn.Target())
	if t.Failed() {
		t.FailNow()
	}
	// When another conversation has been swept, the held ones are older than their retention.
	ask(t, s, "unheld", "hello")
	s.await(t, "conversation expired", "conversation_id=unheld")
	for _, way := range []string{"closed", "cut", "stay", "killed"} {
		for i := range clientsPerWay {
			wantHistory(t, s, fmt.Sprint(way, "-", i))
		}
	}
	if found, _ := s.log.Find("ephemeral conversation deleted"); len(found) > 0 {
		t.Errorf("conversations deleted while their streams were open: %v", found)
	}

	for i, c := range closed {
		if i%2 == 0 {
			c.disconnect() // Cancelling the context ends the stream.
		} else {
			c.conn.Close()
		}
	}
	killed()
	proxy.cut.Store(true)
	for _, way := range []string{"closed", "cut", "killed"} {
		for i := range clientsPerWay {
			s.await(t, "ephemeral conversation deleted", fmt.Sprint("conversation_id=", way, "-", i), "removed_messages=2")
		}
	}
	for i := range clientsPerWay {
		wantHistory(t, s, fmt.Sprint("stay-", i))
	}
	s.terminate()
	s.wantStop(t)
	for _, c := range stay {
		if err := c.wait(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream of %s ended with %v, want UNAVAILABLE", c.id, err)
		}
	}
	if found, _ := s.log.Find("ephemeral conversation deleted"); len(found) != 3*clientsPerWay {
		t.Errorf("%d conversations deleted, want %d", len(found), 3*clientsPerWay)
	}

	s = startServer(t, dataDir, flags...)
	for i := range clientsPerWay {
		s.await(t, "ephemeral conversation deleted", fmt.Sprint("conversation_id=stay-", i), "removed_messages=2")
	}
	list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || len(list.GetConversations()) != 0 || list.GetTotalSize() != 0 {
		t.Errorf("ListConversations = %v, %v; want none", list, err)
	}
}

// deletionDelay returns the delete_after_disconnect of a client.
func deletionDelay(i int) time.Duration { return time.Duration(i%2) * 500 * time.Millisecond }

// TestEphemeralConversationWaitsForItsClient checks that a client that reconnects in time finds its
// history, also if the server was stopped or killed in between.
func TestEphemeralConversationWaitsForItsClient(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		disconnect func(t *testing.T, s *server) (restarted bool)
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
			first := openEphemeral(t, s.conn.Target(), "c", time.Hour)
			second := openEphemeral(t, s.conn.Target(), "c", time.Hour)
			first.disconnect() // The second client still holds the conversation.
			if test.name == "a while" {
				second.disconnect()
			}
			if test.disconnect(t, s) {
				s = startServer(t, dataDir, "--ttl=100ms")
			}
			ask(t, s, "unheld", "hello")
			s.await(t, "conversation expired", "conversation_id=unheld")
			again := watchEphemeral(t, s.conn.Target(), "c", 0)
			if got := contents(history(t, s, "c").GetMessages()); strings.Count(got, "hello from c") != 4 {
				t.Errorf("history = %q, want 2 questions and 2 answers", got)
			}
			again.disconnect()
			s.await(t, "ephemeral conversation deleted", "conversation_id=c", "removed_messages=4")
			_, err := s.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c"})
			wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
		})
	}
}

// TestEphemeralConversationWithATurn checks that the deletion of an ephemeral conversation cancels its
// running turn, and that a conversation with a connected client is not evicted.
func TestEphemeralConversationWithATurn(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--max-conversations=2", agents(t, puppetAgents))
	held := openEphemeral(t, s.conn.Target(), "held", 0)
	for i := range 5 {
		ask(t, s, fmt.Sprint("other-", i), "hello")
	}
	wantHistory(t, s, "held")
	p := newPuppet(t, t.TempDir(), "pipe")
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "held", Content: p.path, Agent: "puppet"})
	p.start(t)
	held.disconnect()
	for {
		_, err := k.stream.Recv()
		if err != nil {
			wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
			break
		}
	}
	s.await(t, "ephemeral conversation deleted", "conversation_id=held", "removed_messages=3")
}

// ephemeralClient is a client with an ephemeral conversation that ends with the client's stream.
type ephemeralClient struct {
	id         string
	conn       *grpc.ClientConn
	stream     grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	disconnect context.CancelFunc
}

// openEphemeral watches a conversation and then chats in it.
func openEphemeral(t *testing.T, target, id string, deleteAfter time.Duration) *ephemeralClient {
	t.Helper()
	c := watchEphemeral(t, target, id, deleteAfter)
	if err := c.chat(t.Context()); err != nil {
		t.Error(err)
	}
	return c
}

// watchEphemeral returns when the stream has started.
func watchEphemeral(t *testing.T, target, id string, deleteAfter time.Duration) *ephemeralClient {
	t.Helper()
	c, err := dialEphemeral(t.Context(), target, id, deleteAfter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.disconnect()
		c.conn.Close()
	})
	return c
}

func dialEphemeral(ctx context.Context, target, id string, deleteAfter time.Duration) (*ephemeralClient, error) {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	c := &ephemeralClient{id: id, conn: conn}
	ctx, c.disconnect = context.WithCancel(ctx)
	c.stream, err = parleyv1.NewConversationServiceClient(conn).WatchConversations(ctx, &parleyv1.WatchConversationsRequest{
		ConversationIds: []string{id}, DeleteAfterDisconnect: durationpb.New(deleteAfter),
	})
	if err != nil {
		return nil, err
	}
	first, err := c.stream.Recv()
	if err == nil && first.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
		err = fmt.Errorf("%s: first change = %v, want HEARTBEAT", id, first)
	}
	return c, err
}

// chat sends a message and receives its echo.
func (c *ephemeralClient) chat(ctx context.Context) error {
	stream, err := parleyv1.NewConversationServiceClient(c.conn).Chat(ctx, &parleyv1.ChatRequest{
		ConversationId: c.id, Content: "hello from " + c.id,
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("chat in %s: %w", c.id, err)
	}
	return nil
}

// wait returns the error that ends the stream.
func (c *ephemeralClient) wait() error {
	for {
		if _, err := c.stream.Recv(); err != nil {
			return err
		}
	}
}

// wantHistory checks that the conversation has the message of a client and its echo.
func wantHistory(t *testing.T, s *server, id string) {
	t.Helper()
	if got := history(t, s, id).GetMessages(); len(got) != 2 {
		t.Errorf("history of %s = %v, want 2 messages", id, got)
	}
}

// startEphemeralClients starts a process with clientsPerWay clients and returns a function that kills it.
func startEphemeralClients(t *testing.T, target string) (kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asEphemeralClients+"="+target)
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
	if line, err := bufio.NewReader(out).ReadString('\n'); line != strconv.Itoa(clientsPerWay)+"\n" {
		t.Fatalf("the process of clients printed %q, %v; want %d", line, err, clientsPerWay)
	}
	return kill
}

// runEphemeralClients is the main function of that process. It never returns.
func runEphemeralClients(target string) {
	var clients sync.WaitGroup
	var connected atomic.Int64
	for i := range clientsPerWay {
		clients.Go(func() {
			c, err := dialEphemeral(context.Background(), target, fmt.Sprint("killed-", i), deletionDelay(i))
			if err == nil {
				err = c.chat(context.Background())
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			connected.Add(1)
		})
	}
	clients.Wait()
	fmt.Println(connected.Load())
	_, _ = io.Copy(io.Discard, os.Stdin)
	select {}
}

// silentProxy is a proxy that forwards all data until cut is set. From then on it drops all data, and the
// connections stay open.
type silentProxy struct {
	listener net.Listener
	cut      atomic.Bool
	group    sync.WaitGroup
}

func startSilentProxy(t *testing.T, target string) *silentProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &silentProxy{listener: l}
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
			h.group.Go(func() { _, _ = io.Copy(cuttableWriter{h, server}, client) })
			h.group.Go(func() { _, _ = io.Copy(cuttableWriter{h, client}, server) })
		}
	})
	t.Cleanup(func() { l.Close() })
	return h
}

// cuttableWriter forwards what is written, or drops it when proxy.cut is set.
type cuttableWriter struct {
	proxy *silentProxy
	to    io.Writer
}

func (p cuttableWriter) Write(b []byte) (int, error) {
	if p.proxy.cut.Load() {
		return len(b), nil
	}
	return p.to.Write(b)
}
