package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server with memstore and the echo agent, and clients of all its services.
type fixture struct {
	parleyv1.ConversationServiceClient
	parleyv1.RecordServiceClient
	parleyv1.InteractionLogServiceClient
	admin  parleyv1.AdminServiceClient
	conn   *grpc.ClientConn
	server *Server
	store  store.Store
	hub    *watch.Hub
	log    *logBuffer

	mu      sync.Mutex
	changes []store.Change
}

// setup contains the options that a test may change.
type setup struct {
	Options
	storeOptions store.Options
	// wrap returns the store that the server uses in place of its argument.
	wrap func(store.Store) store.Store
	// wrapConn returns the connection that the client uses in place of its argument.
	wrapConn func(net.Conn) net.Conn
	// grpcOptions are additional options of the grpc.Server. Their interceptors are the innermost ones.
	grpcOptions []grpc.ServerOption
}

// open starts a server. If change is not nil, open calls it to change the defaults.
func open(t *testing.T, change func(*setup)) *fixture {
	t.Helper()
	f := &fixture{hub: watch.New(watch.Options{}), log: new(logBuffer)}
	log := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	agents, err := agent.NewSet(
		"echo",
		[]agent.Entry{{Name: "echo", Kind: "echo", Description: "Says it again.", Agent: echo.New()}},
	)
	if err != nil {
		t.Fatal(err)
	}
	s := &setup{
		Options: Options{
			StoreName: "memory", Hub: f.hub, Agents: agents, Version: "v0.0.0-test", Log: log, SummaryBytes: 1 << 20,
		},
		wrap:     func(s store.Store) store.Store { return s },
		wrapConn: func(c net.Conn) net.Conn { return c },
	}
	if change != nil {
		change(s)
	}
	f.hub = s.Hub
	var turns *turn.Manager
	s.storeOptions.Observe = func(changes []store.Change) {
		if l, ok := s.Interactions.(*interactionlog.Log); ok {
			l.Committed(changes)
		}
		f.hub.Committed(changes)
		turns.Committed(changes)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changes = append(f.changes, changes...)
	}
	f.store = memstore.New(s.storeOptions)
	s.Store = s.wrap(f.store)
	turns = turn.New(t.Context(), turn.Options{
		Store: s.Store, Agents: s.Agents, EventSink: f.hub, Log: log, TurnTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxAnswerBytes: 1 << 20, MaxTurns: 16,
	})
	if s.Turns == nil {
		s.Turns = turns
	}
	f.server = New(s.Options)
	f.serve(t, s.wrapConn, s.grpcOptions)
	t.Cleanup(func() {
		turns.Stop(t.Context()) // The test's context has ended, so Stop does not wait.
		f.store.Close()
	})
	return f
}

// serve starts to serve and opens the client's connection. The test's cleanup closes both before it
// closes what was opened earlier.
func (f *fixture) serve(t *testing.T, wrapConn func(net.Conn) net.Conn, options []grpc.ServerOption) {
	t.Helper()
	listener := bufconn.Listen(32 << 10)
	g := grpc.NewServer(append(append(f.server.ServerOptions(), grpc.WaitForHandlers(true)), options...)...)
	f.server.Register(g)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := g.Serve(listener); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///parley",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := listener.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			return wrapConn(conn), nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f.conn = conn
	f.ConversationServiceClient, f.admin = parleyv1.NewConversationServiceClient(
		conn,
	), parleyv1.NewAdminServiceClient(
		conn,
	)
	f.RecordServiceClient = parleyv1.NewRecordServiceClient(conn)
	f.InteractionLogServiceClient = parleyv1.NewInteractionLogServiceClient(conn)
	t.Cleanup(func() {
		f.server.Stop()
		conn.Close()
		g.Stop()
		serving.Wait()
	})
}

// changeCount returns the number of committed changes. If it is the same before and after a call, the
// call wrote nothing.
func (f *fixture) changeCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.changes)
}

// append appends messages and returns the reply.
func (f *fixture) append(t *testing.T, id string, messages ...*parleyv1.Message) *parleyv1.AppendMessagesResponse {
	t.Helper()
	reply, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: messages})
	if err != nil {
		t.Fatalf("append to %q: %v", id, err)
	}
	return reply
}

// chat runs a turn and returns its events.
func (f *fixture) chat(t *testing.T, r *parleyv1.ChatRequest) ([]*parleyv1.TurnEvent, error) {
	t.Helper()
	stream, err := f.Chat(t.Context(), r)
	if err != nil {
		return nil, err
	}
	var events []*parleyv1.TurnEvent
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return events, nil
		case err != nil:
			return events, err
		}
		events = append(events, reply.GetEvent())
	}
}

func user(content string) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content}
}

func assistant(content string) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Content: content}
}

func sequences(messages []*parleyv1.Message) []int32 {
	var all []int32
	for _, m := range messages {
		all = append(all, m.GetSequence())
	}
	return all
}

// statusParts are the parts of a status that a client receives.
type statusParts struct {
	code     codes.Code
	reason   string
	text     string
	metadata map[string]string
	fields   []string
	resource *errdetails.ResourceInfo
	retry    time.Duration
}

func statusOf(err error) statusParts {
	s := status.Convert(err)
	out := statusParts{code: s.Code(), text: s.Message()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "parley" {
				out.reason, out.metadata = d.GetReason(), d.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				out.fields = append(out.fields, v.GetField())
			}
		case *errdetails.ResourceInfo:
			out.resource = d
		case *errdetails.RetryInfo:
			out.retry = d.GetRetryDelay().AsDuration()
		}
	}
	return out
}

// wantError fails the test unless the error has the code and the reason.
func wantError(t *testing.T, err error, code codes.Code, reason string) statusParts {
	t.Helper()
	got := statusOf(err)
	if got.code != code || got.reason != reason {
		t.Errorf("error = %v %q (%v), want %v %q", got.code, got.reason, err, code, reason)
	}
	return got
}

// logBuffer collects the log.
type logBuffer struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Write(p)
}

// lines returns the lines that contain all of the words.
func (b *logBuffer) lines(words ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []string
	for line := range strings.Lines(b.bytes.String()) {
		all := true
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}
