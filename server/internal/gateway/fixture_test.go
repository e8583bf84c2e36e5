package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is the maximum wait of a test. Only a failing test waits that long.
const testTimeout = time.Minute

// fixture is a handler over HTTP in front of a service on memstore with the echo agent.
type fixture struct {
	url    string
	client *http.Client
	conn   *grpc.ClientConn // The connection to the service.
}

// newFixture returns a fixture with its own service, which ends with the test.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return serve(t, openService(t))
}

// serve returns a fixture that calls a service over conn.
func serve(t *testing.T, conn *grpc.ClientConn) *fixture {
	t.Helper()
	return serveAuthorized(t, conn, nil)
}

// serveAuthorized is like serve, with a check of the callers.
func serveAuthorized(t *testing.T, conn *grpc.ClientConn, authorize Authorize) *fixture {
	t.Helper()
	handler, err := New(t.Context(), conn, authorize)
	if err != nil {
		t.Fatal(err)
	}
	f := serveHandler(t, handler)
	f.conn = conn
	return f
}

// serveHandler returns a fixture with a handler.
func serveHandler(t *testing.T, handler http.Handler) *fixture {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return &fixture{url: s.URL, client: s.Client()}
}

// openService starts a service and returns a connection to it.
func openService(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, _ := openServiceWith(t, nil)
	return conn
}

// openServiceWith starts a service whose callers a authenticates. It returns the check of the callers, too.
func openServiceWith(t *testing.T, a *auth.Authenticator) (*grpc.ClientConn, Authorize) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	hub := watch.New(watch.Options{})
	agents, err := agent.NewSet("echo", []agent.Entry{
		{Name: "echo", Kind: "echo", Agent: echo.New()}, {Name: "large-first", Agent: largeFirst{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var turns *turn.Manager
	conversations := memstore.New(store.Options{Observe: func(changes []store.Change) {
		hub.Committed(changes)
		turns.Committed(changes)
	}})
	turns = turn.New(t.Context(), turn.Options{
		Store: conversations, Agents: agents, EventSink: hub, Log: log, TurnTimeout: testTimeout, IdleTimeout: testTimeout,
		MaxAnswerBytes: 3 << 20, MaxTurns: 16,
	})
	service, err := rpc.New(rpc.Options{
		Store: conversations, StoreName: "memory", Turns: turns, Hub: hub, Agents: agents, Log: log, Auth: a,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		turns.Stop(t.Context()) // The context has ended, so Stop does not wait for turns.
		conversations.Close()
	})
	g := grpc.NewServer(append(service.LoopbackOptions(), grpc.WaitForHandlers(true))...)
	service.Register(g)
	conn := dial(t, g)
	t.Cleanup(service.Stop)
	return conn, service.Authorize
}

// dial serves g until the test ends and returns a connection to it.
func dial(t *testing.T, g *grpc.Server) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() {
		// A test without calls may stop the server before Serve is called.
		if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("Serve: %v", err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///parley",
		grpc.WithStaticStreamWindowSize(256<<10), // The same value as the server's.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		serving.Wait()
	})
	return conn
}

// answer is the response that a client received.
type answer struct {
	code   int
	header http.Header
	body   string
}

// do sends a request. Each header is "Name: value".
func (f *fixture) do(t *testing.T, method, path, body string, header ...string) *answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	response, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return &answer{code: response.StatusCode, header: response.Header, body: string(text)}
}

// status decodes the answer as an error.
func (a *answer) status(t *testing.T) *status.Status {
	t.Helper()
	var s rpcstatus.Status
	if err := protojson.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return status.FromProto(&s)
}

// fields returns the names of the fields with faults, sorted.
func fields(s *status.Status) []string {
	var all []string
	for _, detail := range s.Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				all = append(all, v.GetField())
			}
		}
	}
	slices.Sort(all)
	return all
}

// wantError fails the test unless the answer is an error with this HTTP status, this reason and
// exactly these fields with faults.
func (a *answer) wantError(t *testing.T, code int, reason string, at ...string) {
	t.Helper()
	s := a.status(t)
	slices.Sort(at)
	if a.code != code || reasonOf(s) != reason || !slices.Equal(fields(s), at) {
		t.Errorf("got %d %q %q, want %d %q %q: %s", a.code, reasonOf(s), fields(s), code, reason, at, a.body)
	}
	if media := a.header.Get("Content-Type"); media != "application/json" {
		t.Errorf("error has Content-Type %q, want application/json", media)
	}
}

// wantOK fails the test unless the status is 200. It returns the body.
func (a *answer) wantOK(t *testing.T) string {
	t.Helper()
	if a.code != http.StatusOK {
		t.Fatalf("got %d: %s", a.code, a.body)
	}
	return a.body
}
