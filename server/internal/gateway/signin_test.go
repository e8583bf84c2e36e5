package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/parleyhq/parley/server/internal/auth"
)

// oneToken accepts one token until it is revoked.
type oneToken struct{ revoked atomic.Bool }

// Verify accepts the token "valid".
func (o *oneToken) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token != "valid" || o.revoked.Load() {
		return auth.Identity{}, errors.New("not the token")
	}
	return auth.Identity{Name: "someone", Tenants: []string{"acme", "globex"}, Role: auth.Writer}, nil
}

// serveWith returns a fixture whose callers a authenticates.
func serveWith(t *testing.T, a *auth.Authenticator) *fixture {
	t.Helper()
	conn, authorize := openServiceWith(t, a)
	return serveAuthorized(t, conn, authorize)
}

// TestStreamOfRevokedCredential checks that a stream of events ends with an error event when its credential is no longer
// valid, as with any other error.
func TestStreamOfRevokedCredential(t *testing.T) {
	verifier := new(oneToken)
	a := auth.New(time.Now, verifier)
	f := serveWith(t, a)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/v1/watch", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{
		"Accept": {"text/event-stream"}, "Authorization": {"Bearer valid"}, "Parley-Tenant": {"globex"},
	}
	response, err := f.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	first := make([]byte, 1) // A watch begins with an event, so the server follows the credential now.
	if _, err := io.ReadFull(response.Body, first); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("watch = %s, %v; want 200 and an event", response.Status, err)
	}
	verifier.revoked.Store(true)
	a.Recheck(t.Context())
	rest, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"event: error\n", `"code":16`, `"UNAUTHENTICATED"`} {
		if !strings.Contains(strings.ReplaceAll(string(rest), `": `, `":`), want) {
			t.Errorf("the stream ended with\n%s\nwant %s in it", rest, want)
		}
	}
}

// TestRepeatedCredential checks that a repeated header is no credential, and that a header with characters that gRPC
// does not send is faulty, not absent.
func TestRepeatedCredential(t *testing.T) {
	f := serveWith(t, auth.New(time.Now, new(oneToken)))
	for _, test := range []struct {
		name   string
		header http.Header
		code   int
	}{
		{"once", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"acme"}}, 200},
		{"repeated token", http.Header{"Authorization": {"Bearer valid", "Bearer valid"}, "Parley-Tenant": {"acme"}}, 401},
		{"two tenants", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"acme", "globex"}}, 403},
		{"tenant outside ASCII", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"ä"}}, 403},
		{"token outside ASCII", http.Header{"Authorization": {"Bearer validä"}, "Parley-Tenant": {"acme"}}, 401},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/v1/conversations", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = test.header
		response, err := f.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.code {
			t.Errorf("%s: status = %s, want %d", test.name, response.Status, test.code)
		}
	}
}

// TestPreflightWithSignIn checks that the preflight request of a page needs no credential and allows its headers, also
// for any host.
func TestPreflightWithSignIn(t *testing.T) {
	conn, authorize := openServiceWith(t, auth.New(time.Now, new(oneToken)))
	api, err := New(t.Context(), conn, authorize, NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	guarded, err := Guard(api, []string{"https://app.example"}, true)
	if err != nil {
		t.Fatal(err)
	}
	f := serveHandler(t, guarded)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, f.url+"/v1/conversations", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "parley.example"
	request.Header = http.Header{
		"Origin": {"https://app.example"}, "Access-Control-Request-Method": {"GET"},
		"Access-Control-Request-Headers": {"authorization,parley-tenant"},
	}
	response, err := f.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	allowed := response.Header.Get("Access-Control-Allow-Headers")
	if response.StatusCode != http.StatusNoContent || allowed != "authorization,parley-tenant" ||
		response.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("preflight = %s, %v; want 204 with the origin and the headers", response.Status, response.Header)
	}
	request.Header.Set("Origin", "https://other.example")
	if response, err = f.client.Do(request); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("preflight of another origin = %s, want 403", response.Status)
	}
}

// TestCallerIsCheckedFirst checks that a caller without the right to make a call is refused before its body is read
// and before anything but the path is parsed.
func TestCallerIsCheckedFirst(t *testing.T) {
	conn, authorize := openServiceWith(t, auth.New(time.Now, new(oneToken)))
	d, err := newHandler(t.Context(), conn, authorize, NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	d.maxBodyTime, d.large.maxPace = time.Hour, time.Hour
	s := httptest.NewServer(LimitWrites(d))
	t.Cleanup(s.Close) // Runs after the connections below are closed.
	f := &fixture{url: s.URL, client: s.Client()}
	const (
		signedIn  = "Authorization: Bearer valid\r\n"
		acme      = signedIn + "Parley-Tenant: acme\r\n"
		missing   = "Content-Length: 300000\r\n\r\n" // of the body
		malformed = "Content-Length: 3\r\n\r\n{{{"
		none      = "\r\n"
	)
	large := fmt.Sprintf("Content-Length: %d\r\n\r\n%*s", largeBodyBytes+10, largeBodyBytes+1, "")
	for _, test := range []struct {
		name, line, header, body string
		code                     int
		reason                   string
	}{
		{"no body arrives", "POST /v1/chat", "", missing, 401, "UNAUTHENTICATED"},
		{"no body arrives for a unary call", "POST /v1/conversations:load", "", missing, 401, "UNAUTHENTICATED"},
		{"no body arrives for an import", "POST /v1/import", "", missing, 401, "UNAUTHENTICATED"},
		{"no body arrives for a GET", "GET /v1/conversations", "", missing, 401, "UNAUTHENTICATED"},
		{"a large body stalls", "POST /v1/conversations:load", "", large, 401, "UNAUTHENTICATED"},
		{"a body is too large", "POST /v1/chat", "", "Content-Length: 9000000\r\n\r\n", 401, "UNAUTHENTICATED"},
		{"malformed body", "POST /v1/chat", "", malformed, 401, "UNAUTHENTICATED"},
		{"malformed query", "GET /v1/conversations?%zz", "", none, 401, "UNAUTHENTICATED"},
		{"malformed timeout", "GET /v1/conversations", "Grpc-Timeout: x\r\n", none, 401, "UNAUTHENTICATED"},
		{"unknown parameter of an import", "POST /v1/import?x=y", "", none, 401, "UNAUTHENTICATED"},
		{"no tenant", "POST /v1/chat", signedIn, missing, 400, "TENANT_REQUIRED"},
		{"other tenant", "POST /v1/chat", signedIn + "Parley-Tenant: initech\r\n", missing, 403, "PERMISSION_DENIED"},
		{"too small a role", "DELETE /v1/conversations/c/interactions", acme, missing, 403, "PERMISSION_DENIED"},
		{"malformed body of a caller", "POST /v1/chat", acme, malformed, 400, "INVALID_REQUEST"},
		{"unknown path", "GET /v1/nothing", "", none, 404, reasonPathNotFound},
		{"unknown method", "PUT /v1/chat", "", none, 405, reasonMethodNotAllowed},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := rawDial(t, f)
			fmt.Fprint(c, test.line+" HTTP/1.1\r\nHost: x\r\n"+test.header+test.body)
			response := readResponse(t, c)
			text := make([]byte, max(0, response.ContentLength))
			if _, err := io.ReadFull(response.Body, text); err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != test.code || !strings.Contains(string(text), test.reason) {
				t.Errorf("%s = %s: %s; want %d %s", test.line, response.Status, text, test.code, test.reason)
			}
			if got := response.Header.Get("Www-Authenticate"); (got == "Bearer") != (test.code == http.StatusUnauthorized) {
				t.Errorf("WWW-Authenticate = %q with status %s", got, response.Status)
			}
			if !d.large.reads.TryAcquire(maxLargeReads) {
				t.Fatal("the refused body counts as being read")
			}
			d.large.reads.Release(maxLargeReads)
		})
	}
	body := strings.Repeat(" ", largeBodyBytes) + "{}"
	f.do(t, "POST", "/v1/conversations:load", body, "Authorization: Bearer valid", "Parley-Tenant: acme").wantOK(t)
}

// TestFaultyHeaderIsSent checks that a token which gRPC cannot send is passed on as a faulty one. If it were absent, the
// client certificate of the connection would count.
func TestFaultyHeaderIsSent(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "Bearer \xff", "Bearer a\x00"} {
		request := &http.Request{Header: http.Header{"Authorization": {value}}}
		ctx := metadata.NewIncomingContext(t.Context(), Credentials(request))
		if c := auth.FromProcess(ctx); !c.TokenSent || c.Token != "" {
			t.Errorf("credentials of the header %q: sent %t, token of %d bytes; want a token that is sent and empty", value,
				c.TokenSent, len(c.Token))
		}
	}
}
