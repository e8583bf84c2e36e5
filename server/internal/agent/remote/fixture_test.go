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

// untilFailed is how long a test waits for what must come. Only a failing test takes so long.
const untilFailed = time.Minute

type pieces = grpc.ServerStreamingServer[parleyv1.RespondResponse]

// service is a counterpart: an AgentService that does what a test says.
type service struct {
	parleyv1.UnimplementedAgentServiceServer
	respond func(*parleyv1.RespondRequest, pieces) error

	address string
	health  *health.Server // nil where it has none
	lines   *lines
	stop    func() // kills it: the connections are reset, without a word
}

func (s *service) Respond(request *parleyv1.RespondRequest, stream pieces) error {
	return s.respond(request, stream)
}

// start serves respond on address, "127.0.0.1:0" or "unix:PATH", until the test ends.
func start(t *testing.T, address string, h *health.Server, respond func(*parleyv1.RespondRequest, pieces) error, options ...grpc.ServerOption) *service {
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

// serve serves what has been registered.
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
	s.address, s.lines = l.Addr().String(), &lines{Listener: l}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(s.lines) // Ends when the listener does.
	}()
	s.stop = sync.OnceFunc(func() {
		s.lines.cut()
		server.Stop()
		<-served
	})
	t.Cleanup(s.stop)
}

// lines is a listener that can do to its connections what the death of the process does.
type lines struct {
	net.Listener

	mu    sync.Mutex
	taken []net.Conn
}

func (l *lines) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taken = append(l.taken, conn)
	}
	return conn, err
}

func (l *lines) cut() {
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

// open makes an agent that is closed when the test ends.
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

// collect returns what an answer brings.
func collect(ctx context.Context, a *Agent, request *parleyv1.RespondRequest) (got []*parleyv1.RespondResponse, err error) {
	for piece, err := range a.Respond(ctx, request) {
		if err != nil {
			return got, err
		}
		got = append(got, piece)
	}
	return got, nil
}

// mustFail checks that the error is one for people, and returns it.
func mustFail(t *testing.T, err error) *agent.Error {
	t.Helper()
	failure, ok := errors.AsType[*agent.Error](err)
	if !ok {
		t.Fatalf("error is %v (%T), want an *agent.Error", err, err)
	}
	return failure
}

// until waits for the agent's connection to be in one of the states.
func until(t *testing.T, a *Agent, states ...connectivity.State) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), untilFailed)
	defer cancel()
	a.conn.Connect()
	for state := a.conn.GetState(); !slices.Contains(states, state); state = a.conn.GetState() {
		if !a.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("the connection is %v, want %v", state, states)
		}
	}
}

// wait waits for c to be closed or to bring something.
func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(untilFailed):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

// says answers with these texts.
func says(texts ...string) func(*parleyv1.RespondRequest, pieces) error {
	return func(_ *parleyv1.RespondRequest, stream pieces) error {
		for _, s := range texts {
			if err := stream.Send(text(s)); err != nil {
				return err
			}
		}
		return nil
	}
}
