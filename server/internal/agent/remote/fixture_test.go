package remote

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ agent.Agent = (*Agent)(nil)

// testTimeout is the maximum wait of a test. Only a failing test waits that long.
const testTimeout = time.Minute

type pieces = grpc.ServerStreamingServer[parleyv1.RespondResponse]

// service is an AgentService whose answers a test defines.
type service struct {
	parleyv1.UnimplementedAgentServiceServer
	respond func(*parleyv1.RespondRequest, pieces) error

	address  string
	health   *health.Server // Nil if the server has no health service.
	listener *resettingListener
	stop     func() // Ends the server like a killed process: its connections are reset.
}

func (s *service) Respond(request *parleyv1.RespondRequest, stream pieces) error {
	return s.respond(request, stream)
}

// start serves respond on address, "127.0.0.1:0" or "unix:PATH", until the end of the test.
func start(t *testing.T, address string, h *health.Server, respond func(*parleyv1.RespondRequest, pieces) error,
	options ...grpc.ServerOption,
) *service {
	t.Helper()
	s := &service{respond: respond, health: h}
	server := grpc.NewServer(options...)
	parleyv1.RegisterAgentServiceServer(server, s)
	if h != nil {
		registerHealth(server, h)
	}
	s.serve(t, address, server)
	return s
}

// serve serves the registered services on address.
func (s *service) serve(t *testing.T, address string, server *grpc.Server) {
	t.Helper()
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s.address, s.listener = l.Addr().String(), &resettingListener{Listener: l}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(s.listener) // It ends when the listener is closed.
	}()
	s.stop = sync.OnceFunc(func() {
		s.listener.cut()
		server.Stop()
		<-served
	})
	t.Cleanup(s.stop)
}

// resettingListener can reset all its connections, as the kernel does when a process is killed.
type resettingListener struct {
	net.Listener

	mu    sync.Mutex
	taken []net.Conn
}

func (l *resettingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taken = append(l.taken, conn)
	}
	return conn, err
}

func (l *resettingListener) cut() {
	l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.taken {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // It may be closed already.
		}
		conn.Close()
	}
}

// open returns an agent that is closed at the end of the test.
func open(t *testing.T, config Config, extra ...grpc.DialOption) *Agent {
	t.Helper()
	a, err := connect(config, extra...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// collect returns the pieces of an answer.
func collect(
	ctx context.Context, a *Agent, request *parleyv1.RespondRequest,
) (got []*parleyv1.RespondResponse, err error) {
	for piece, err := range a.Respond(ctx, request) {
		if err != nil {
			return got, err
		}
		got = append(got, piece)
	}
	return got, nil
}

// mustFail returns the error as an *agent.Error.
func mustFail(t *testing.T, err error) *agent.Error {
	t.Helper()
	failure, ok := errors.AsType[*agent.Error](err)
	if !ok {
		t.Fatalf("error = %v (%T), want an *agent.Error", err, err)
	}
	return failure
}

// until waits until the agent's connection is in one of the states.
func until(t *testing.T, a *Agent, states ...connectivity.State) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	a.conn.Connect()
	for state := a.conn.GetState(); !slices.Contains(states, state); state = a.conn.GetState() {
		if !a.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("connection state = %v, want %v", state, states)
		}
	}
}

// wait waits until c is closed or returns a value.
func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(testTimeout):
		t.Fatalf("timed out waiting for %s", what)
		panic("unreachable")
	}
}

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

// answerTexts returns a Respond function that answers with these texts.
func answerTexts(texts ...string) func(*parleyv1.RespondRequest, pieces) error {
	return func(_ *parleyv1.RespondRequest, stream pieces) error {
		for _, s := range texts {
			if err := stream.Send(text(s)); err != nil {
				return err
			}
		}
		return nil
	}
}
