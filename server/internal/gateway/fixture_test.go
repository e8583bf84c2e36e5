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
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come. Only a failing test takes so long.
const patience = time.Minute

// fixture is a door before the service on memstore with the echo agent, over HTTP.
type fixture struct {
	url    string
	client *http.Client
	conn   *grpc.ClientConn // to the service
}

// open serves until the test ends.
func open(t *testing.T) *fixture {
	t.Helper()
	return serve(t, openService(t))
}

// serve has a door before a service.
func serve(t *testing.T, over *grpc.ClientConn) *fixture {
	t.Helper()
	handler, err := New(t.Context(), over)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return &fixture{url: s.URL, client: s.Client(), conn: over}
}

// openService returns a connection to the service.
func openService(t *testing.T) *grpc.ClientConn {
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
	kept := memstore.New(store.Options{Observe: func(changes []store.Change) {
		hub.Committed(changes)
		turns.Committed(changes)
	}})
	turns = turn.New(t.Context(), turn.Options{
		Store: kept, Agents: agents, Audience: hub, Log: log, TurnTimeout: patience, IdleTimeout: patience,
		MaxAnswerBytes: 3 << 20, MaxTurns: 16,
	})
	service, err := rpc.New(rpc.Options{Store: kept, StoreName: "memory", Turns: turns, Hub: hub, Agents: agents, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		turns.Stop(t.Context()) // Which has ended: nothing waits.
		kept.Close()
	})
	g := grpc.NewServer(append(service.LoopbackOptions(), grpc.WaitForHandlers(true))...)
	service.Register(g)
	conn := dial(t, g)
	t.Cleanup(service.Stop)
	return conn
}

// dial serves until the test ends.
func dial(t *testing.T, g *grpc.Server) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() {
		// A test that makes no call may be at its end before this begins.
		if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///parley",
		grpc.WithStaticStreamWindowSize(256<<10), // As the server does.
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

// answer is what a client gets.
type answer struct {
	code   int
	header http.Header
	body   string
}

// do makes a request; header is "Name: value".
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

// status is the error that an answer is.
func (a *answer) status(t *testing.T) *status.Status {
	t.Helper()
	var s rpcstatus.Status
	if err := protojson.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return status.FromProto(&s)
}

// fields are those at fault, in order.
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

// wantError fails the test unless the answer is an error with this HTTP status, this reason
// and just these fields at fault.
func (a *answer) wantError(t *testing.T, code int, reason string, at ...string) {
	t.Helper()
	s := a.status(t)
	slices.Sort(at)
	if a.code != code || reasonOf(s) != reason || !slices.Equal(fields(s), at) {
		t.Errorf("got %d %q %q, want %d %q %q: %s", a.code, reasonOf(s), fields(s), code, reason, at, a.body)
	}
	if media := a.header.Get("Content-Type"); media != "application/json" {
		t.Errorf("an error of type %q", media)
	}
}

// wantOK fails the test unless the answer is a reply, and returns it.
func (a *answer) wantOK(t *testing.T) string {
	t.Helper()
	if a.code != http.StatusOK {
		t.Fatalf("got %d: %s", a.code, a.body)
	}
	return a.body
}
