package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is the maximum wait of a test. Only a failing test waits that long.
const testTimeout = time.Minute

// fixture is a handler over HTTP in front of a service on memstore with the echo agent.
type fixture struct {
	url    string
	client *http.Client
	conn   grpc.ClientConnInterface // The connection to the service.
}

// newFixture returns a fixture with its own service, which ends with the test.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return serve(t, openService(t))
}

// serve returns a fixture that calls a service over conn.
func serve(t *testing.T, conn grpc.ClientConnInterface) *fixture {
	t.Helper()
	return serveAuthorized(t, conn, nil)
}

// serveAuthorized is like serve, with a check of the callers.
func serveAuthorized(t *testing.T, conn grpc.ClientConnInterface, authorize Authorize) *fixture {
	t.Helper()
	handler, err := New(t.Context(), conn, authorize, NewBodies())
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
func openService(t *testing.T) grpc.ClientConnInterface {
	t.Helper()
	conn, _ := openServiceWith(t, nil)
	return conn
}

// openServiceWith starts a service whose callers a authenticates. It returns the check of the callers, too.
func openServiceWith(t *testing.T, a *auth.Authenticator) (grpc.ClientConnInterface, Authorize) {
	t.Helper()
	service := rpctest.Open(t, rpctest.Options{
		Agents: []agent.Entry{{Name: "large-first", Agent: largeFirst{}}},
		Change: func(o *rpc.Options) { o.Auth = a },
	})
	return service.Direct, service.Authorize
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
	if a.code != code || Reason(s) != reason || !slices.Equal(fields(s), at) {
		t.Errorf("got %d %q %q, want %d %q %q: %s", a.code, Reason(s), fields(s), code, reason, at, a.body)
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
