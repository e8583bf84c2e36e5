package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"google.golang.org/grpc/metadata"

	"github.com/parleyhq/parley/client/mcp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// Paths of MCP. The metadata says how a client signs in; see RFC 9728. Clients look for the metadata at the longer path
// first.
const (
	mcpPath         = "/mcp"
	metadataPath    = "/.well-known/oauth-protected-resource"
	mcpMetadataPath = metadataPath + mcpPath
)

// mcpSignIn is the handler of MCP. The calls of its tools have the credentials of the HTTP request.
type mcpSignIn struct {
	tools  http.Handler
	auth   *auth.Authenticator
	signIn func(ctx context.Context, method string, sent metadata.MD) (auth.Principal, error)
	issuer string // where clients get tokens; empty: unknown
}

// ServeHTTP answers a request of a client. A request without a valid credential gets status 401 with the address of the
// metadata, as the specification of MCP requires.
func (m *mcpSignIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	passed := gateway.Metadata(r)
	ctx := metadata.NewOutgoingContext(r.Context(), passed)
	if !m.auth.Required() {
		m.tools.ServeHTTP(w, r.WithContext(ctx))
		return
	}
	credentials := auth.FromProcess(metadata.NewIncomingContext(ctx, passed))
	// Every caller may list the agents. The calls of the tools are authorized themselves.
	caller, err := m.signIn(r.Context(), parleyv1.ConversationService_ListAgents_FullMethodName, passed)
	if wrong, ok := errors.AsType[*auth.TenantError](err); ok {
		refuseTenant(w, wrong)
		return
	}
	user := caller.Tenant + "/" + caller.ID // Several callers may have the same name.
	r = r.WithContext(mcp.WithUser(ctx, user))
	switch {
	case err != nil: // With the same header, all causes have the same reply.
		r.Header = http.Header{"Authorization": {"Bearer invalid"}}
	case credentials.Token == "": // The client has a certificate.
		m.tools.ServeHTTP(w, r)
		return
	}
	mcpauth.RequireBearerToken(func(context.Context, string, *http.Request) (*mcpauth.TokenInfo, error) {
		if err != nil {
			return nil, fmt.Errorf("the request has no valid credential; send a token in the header Authorization, "+
				"or use a client certificate: %w", mcpauth.ErrInvalidToken)
		}
		return &mcpauth.TokenInfo{UserID: user, Expiration: caller.Expires}, nil
	}, &mcpauth.RequireBearerTokenOptions{
		ResourceMetadataURL: origin(r) + mcpMetadataPath, AllowMissingExpiration: true,
	})(m.tools).ServeHTTP(w, r)
}

// refuseTenant answers a request that names no tenant, or one that is not its caller's.
func refuseTenant(w http.ResponseWriter, err *auth.TenantError) {
	code := http.StatusForbidden
	if err.Named == "" {
		code = http.StatusBadRequest
	}
	http.Error(w, err.Error(), code)
}

// serveMetadata answers a request for the metadata. It is public.
func (m *mcpSignIn) serveMetadata(w http.ResponseWriter, r *http.Request) {
	about := &oauthex.ProtectedResourceMetadata{
		Resource: origin(r) + mcpPath, ResourceName: "Parley", BearerMethodsSupported: []string{"header"},
	}
	if m.issuer != "" {
		about.AuthorizationServers = []string{m.issuer}
	}
	mcpauth.ProtectedResourceMetadataHandler(about).ServeHTTP(w, r)
}

// isMetadata reports whether a request is for the metadata. Without sign-in there is none.
func (m *mcpSignIn) isMetadata(r *http.Request) bool {
	return m.auth.Required() && (r.URL.Path == metadataPath || r.URL.Path == mcpMetadataPath)
}

// origin returns the scheme and host that a client used. A client compares it with the address that it called. A proxy
// that ends TLS names the scheme in a header. The value affects only the reply to the same client.
func origin(r *http.Request) string {
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
