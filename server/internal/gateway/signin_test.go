package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// TestStreamOfRevokedCredential checks that a stream of events ends with an error event when its credential is no longer
// valid, as with any other error.
func TestStreamOfRevokedCredential(t *testing.T) {
	verifier := new(oneToken)
	a := auth.New(time.Now, verifier)
	f := serve(t, openServiceWith(t, a))
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

// TestRepeatedCredential checks that a repeated header is no credential, and that a tenant header with other characters
// than gRPC sends is absent.
func TestRepeatedCredential(t *testing.T) {
	f := serve(t, openServiceWith(t, auth.New(time.Now, new(oneToken))))
	for _, test := range []struct {
		name   string
		header http.Header
		code   int
	}{
		{"once", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"acme"}}, 200},
		{"repeated token", http.Header{"Authorization": {"Bearer valid", "Bearer valid"}, "Parley-Tenant": {"acme"}}, 401},
		{"two tenants", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"acme", "globex"}}, 403},
		{"tenant outside ASCII", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"ä"}}, 400},
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
	api, err := New(t.Context(), openServiceWith(t, auth.New(time.Now, new(oneToken))))
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
