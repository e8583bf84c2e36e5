package peer_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// maxWait is the time after which a test gives up waiting for another server.
const maxWait = time.Minute

// server is a server without a process of its own.
type server struct {
	address string
	hub     *watch.Hub
	peers   *peer.Turns
	log     *logBuffer
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// count returns how many entries have this message.
func (b *logBuffer) count(message string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), message)
}

// openStore opens a store for a server with this address.
func openStore(t *testing.T, engine *redistest.Server, address string, observe func([]store.Change)) *redisstore.Store {
	t.Helper()
	client, err := redisstore.ParseURL(engine.URL(), redisstore.Access{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := redisstore.Open(t.Context(), redisstore.Options{
		Client: client, Buckets: 1, Address: address, Timeout: 2 * time.Second,
		Options: store.Options{MaxMessages: 1000, Observe: observe},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	return s
}

// start starts a server until the end of the test.
func start(t *testing.T, engine *redistest.Server) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{address: listener.Addr().String(), hub: watch.New(watch.Options{}), log: new(logBuffer)}
	shared := openStore(t, engine, s.address, s.hub.Committed)
	agents, err := agent.NewSet("echo", []agent.Entry{{Name: "echo", Kind: "echo", Agent: echo.New()}})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	turns := turn.New(t.Context(), turn.Options{
		Store: shared, Agents: agents, EventSink: s.hub, Log: log, TurnTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxAnswerBytes: 1 << 20, MaxTurns: 16,
	})
	s.peers = peer.New(context.WithoutCancel(t.Context()), peer.Options{
		Local: turns, Shared: shared, Hub: s.hub, Log: log,
	})
	service := rpc.New(rpc.Options{
		Store: shared, StoreName: "redis", Turns: s.peers, Peers: s.peers, Self: shared.Self(), Hub: s.hub, Agents: agents,
		Log: log,
	})
	g := grpc.NewServer(append(service.ServerOptions(), grpc.WaitForHandlers(true))...)
	service.Register(g)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := g.Serve(listener); err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
	})
	t.Cleanup(func() {
		service.Stop()
		turns.Stop(t.Context())
		s.peers.Stop()
		g.Stop()
		serving.Wait()
		if err := s.peers.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	return s
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late, ticker := time.After(maxWait), time.NewTicker(10*time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

// TestStreamsEndWithWatchers: servers send their events while another one has a watcher that wants them, and only then.
func TestStreamsEndWithWatchers(t *testing.T) {
	engine := redistest.Start(t)
	a, b, c := start(t, engine), start(t, engine), start(t, engine)
	if b.hub.HasSubscribers() || c.hub.HasSubscribers() {
		t.Error("HasSubscribers() = true without watchers")
	}
	var leave []func()
	for range 2 {
		complete, end := a.peers.FollowEvents(t.Context(), "default", nil)
		if leave = append(leave, end); !complete || !b.hub.HasSubscribers() || !c.hub.HasSubscribers() {
			t.Errorf("FollowEvents() = %t, want true and events of all servers", complete)
		}
	}
	leave[0]()
	w, err := a.hub.Watch(watch.Watch{Tenant: "default", TurnEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	b.hub.TurnEvent("default", "c", &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{}})
	received := 0
	for response, err := range w.All(t.Context(), nil) {
		if err != nil || response == nil {
			t.Fatal(response, err)
		}
		received++
		if received == 2 { // The heartbeat and the event.
			break
		}
	}
	leave[1]()
	eventually(t, "the streams end with the last watcher", func() bool {
		return !b.hub.HasSubscribers() && !c.hub.HasSubscribers()
	})
}

// TestServerWithoutAnswer: if a server cannot be reached, watchers begin with a GAP, and the failure is logged once.
func TestServerWithoutAnswer(t *testing.T) {
	engine := redistest.Start(t)
	a := start(t, engine)
	openStore(t, engine, "127.0.0.1:1", nil) // A server that does not listen.
	for range 3 {
		complete, leave := a.peers.FollowEvents(t.Context(), "default", nil)
		t.Cleanup(leave)
		if complete {
			t.Error("FollowEvents() = true, want false")
		}
	}
	const message = "turn events of another server not received"
	eventually(t, "the failure is logged", func() bool { return a.log.count(message) > 0 })
	<-time.After(time.Second) // For several attempts.
	if n := a.log.count(message); n != 1 {
		t.Errorf("%d log entries, want 1", n)
	}
}

// TestKeyOfFormerServer: a server answers no call for a server that used its address before. Otherwise it would treat
// the call as the watch of a client, and send events of the calling server back to it.
func TestKeyOfFormerServer(t *testing.T) {
	a := start(t, redistest.Start(t))
	conn, err := grpc.NewClient(a.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "parley-server-key", "former")
	stream, err := parleyv1.NewConversationServiceClient(conn).WatchConversations(ctx,
		&parleyv1.WatchConversationsRequest{IncludeTurnEvents: true})
	if err == nil {
		_, err = stream.Recv()
	}
	reason := ""
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			reason = info.GetReason()
		}
	}
	if reason != "SERVER_UNREACHABLE" {
		t.Errorf("WatchConversations = %v, want SERVER_UNREACHABLE", err)
	}
}
