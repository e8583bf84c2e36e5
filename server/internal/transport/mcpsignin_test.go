package transport

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
	"google.golang.org/grpc/metadata"

	"github.com/parleyhq/parley/server/internal/auth"
)

// oneToken accepts one token, of a caller with two tenants.
type oneToken struct{}

// Verify accepts the token "valid".
func (oneToken) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token != "valid" {
		return auth.Identity{}, errors.New("not the token")
	}
	return auth.Identity{Name: "someone", Tenants: []string{"acme", "globex"}, Role: auth.Reader}, nil
}

// signInWith returns mcpSignIn.signIn without the log.
func signInWith(a *auth.Authenticator) func(context.Context, string, metadata.MD) (auth.Principal, error) {
	return func(ctx context.Context, method string, sent metadata.MD) (auth.Principal, error) {
		return a.Authorize(ctx, method, auth.FromProcess(metadata.NewIncomingContext(ctx, sent)))
	}
}

// TestMCPSignIn checks the replies to credentials, and what the tools receive.
func TestMCPSignIn(t *testing.T) {
	var passed metadata.MD
	accepts := auth.New(time.Now, oneToken{})
	m := &mcpSignIn{
		auth: accepts, signIn: signInWith(accepts),
		tools: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed, _ = metadata.FromOutgoingContext(r.Context())
		}),
	}
	refusals := map[string]bool{}
	for _, test := range []struct {
		name   string
		header http.Header
		code   int
	}{
		{"tenant", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"acme"}}, 200},
		{"no tenant", http.Header{"Authorization": {"Bearer valid"}}, 400},
		{"other tenant", http.Header{"Authorization": {"Bearer valid"}, "Parley-Tenant": {"initech"}}, 403},
		{"none", http.Header{}, 401},
		{"wrong", http.Header{"Authorization": {"Bearer wrong"}}, 401},
		{"malformed", http.Header{"Authorization": {"valid"}}, 401},
		{"repeated", http.Header{"Authorization": {"Bearer valid", "Bearer valid"}}, 401},
	} {
		passed = nil
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://parley.example/mcp", http.NoBody)
		r.Header = test.header
		w := httptest.NewRecorder()
		m.ServeHTTP(w, r)
		if w.Code != test.code {
			t.Errorf("%s: status = %d, want %d: %s", test.name, w.Code, test.code, w.Body)
		}
		if w.Code == http.StatusUnauthorized {
			refusals[w.Body.String()+w.Header().Get("Www-Authenticate")] = true
		}
		if (passed != nil) != (test.code == http.StatusOK) {
			t.Errorf("%s: the tools received %v", test.name, passed)
		}
		want := metadata.MD{
			"authorization": {"Bearer valid"}, "parley-tenant": {"acme"}, "parley-peer": {"192.0.2.1:1234"},
		}
		if diff := cmp.Diff(want, passed); passed != nil && diff != "" {
			t.Errorf("%s: metadata of the tools (-want +got):\n%s", test.name, diff)
		}
	}
	if len(refusals) != 1 {
		t.Errorf("replies with status 401 = %v, want one text", refusals)
	}
}

// namesakes accepts the tokens "1" and "2" of two callers with the same name.
type namesakes struct{}

// Verify returns an identity with the token as its ID.
func (namesakes) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token != "1" && c.Token != "2" {
		return auth.Identity{}, errors.New("not a token")
	}
	return auth.Identity{ID: "test:" + c.Token, Name: "shop", Tenants: []string{"acme"}, Role: auth.Reader}, nil
}

// TestMCPUser checks that callers with the same name are different users, who cannot cancel each other's calls.
func TestMCPUser(t *testing.T) {
	var user string
	accepts := auth.New(time.Now, namesakes{})
	m := &mcpSignIn{
		auth: accepts, signIn: signInWith(accepts),
		tools: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			user = mcpauth.TokenInfoFromContext(r.Context()).UserID
		}),
	}
	for token, want := range map[string]string{"1": "acme/test:1", "2": "acme/test:2"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://parley.example/mcp", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		m.ServeHTTP(httptest.NewRecorder(), r)
		if user != want {
			t.Errorf("user with the token %s = %q, want %q", token, user, want)
		}
	}
}

// TestMCPMetadata checks that the metadata has the address that the client used, and the issuer if there is one.
func TestMCPMetadata(t *testing.T) {
	for _, test := range []struct {
		issuer, proto, want string
	}{
		{"", "", `{"resource":"http://parley.example/mcp","bearer_methods_supported":["header"],"resource_name":"Parley"}`},
		{
			"https://login.example", "https", `{"resource":"https://parley.example/mcp",` +
				`"authorization_servers":["https://login.example"],"bearer_methods_supported":["header"],"resource_name":"Parley"}`,
		},
	} {
		m := &mcpSignIn{auth: auth.New(time.Now, oneToken{}), issuer: test.issuer}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://parley.example"+mcpMetadataPath, http.NoBody)
		r.Header.Set("X-Forwarded-Proto", test.proto)
		w := httptest.NewRecorder()
		if !m.isMetadata(r) {
			t.Fatalf("isMetadata(%s) = false, want true", r.URL)
		}
		m.serveMetadata(w, r)
		var got, want any
		if err := errors.Join(json.Unmarshal(w.Body.Bytes(), &got), json.Unmarshal([]byte(test.want), &want)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metadata with the issuer %q (-want +got):\n%s", test.issuer, diff)
		}
		m.auth = auth.New(time.Now)
		if m.isMetadata(r) {
			t.Error("isMetadata() without sign-in = true, want false")
		}
	}
}
