package auth

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Keys of the metadata that a call is authenticated with.
const (
	// TokenKey is the key of a bearer token: "Bearer TOKEN".
	TokenKey = "authorization"
	// TenantKey is the key of the tenant that a caller with several tenants names.
	TenantKey = "parley-tenant"
	// ExpiresKey is the key of the header in which a stream returns when its credential expires, as in RFC 3339. The
	// stream ends [Grace] later.
	ExpiresKey = "parley-credential-expires"
	// certificateKey is the key of the client certificate of an HTTP request, in DER, on the calls that the
	// HTTP transport makes in memory, and of calls that another server passes on. No other caller over a network can
	// use it; see [Forwarded] and [PassedOn].
	certificateKey = "parley-client-certificate-bin"
)

// Credentials are what a caller sent to sign in. Their text in formats and logs does not contain the token.
type Credentials struct {
	// Token is the bearer token. It is empty if the caller sent none, or one that is malformed or repeated.
	Token string `json:"-"`
	// TokenSent is true if the caller sent the metadata [TokenKey], even if Token is empty.
	TokenSent bool
	// Tenant is the tenant that the caller named, or empty.
	Tenant string
	// Certificate is the client certificate that TLS has verified, or nil. It counts only without a token: a proxy
	// that signs in to this server may pass on the tokens of its own callers, and a faulty one must not become the
	// identity of the proxy.
	Certificate *x509.Certificate
}

// String returns which credentials there are, without the token.
func (c Credentials) String() string {
	return fmt.Sprintf("{token: %t, tenant: %q, certificate: %t}", c.TokenSent || c.Token != "", c.Tenant,
		c.Certificate != nil)
}

// GoString returns the same, for the verb %#v.
func (c Credentials) GoString() string { return "auth.Credentials" + c.String() }

// LogValue returns the same, for logs.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Kind returns the kind of credential that counts: "token", "certificate", or "none".
func (c Credentials) Kind() string {
	switch {
	case c.TokenSent || c.Token != "":
		return "token"
	case c.Certificate != nil:
		return "certificate"
	}
	return "none"
}

// FromNetwork returns the credentials of a call that arrived over a network.
func FromNetwork(ctx context.Context) Credentials {
	c := fromMetadata(ctx)
	if from, ok := peer.FromContext(ctx); ok {
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			c.Certificate = info.State.VerifiedChains[0][0]
		}
	}
	return c
}

// FromProcess returns the credentials of a call of another transport of this process, or of another server on the same
// store. Both pass on those of their own caller.
func FromProcess(ctx context.Context) Credentials {
	c := fromMetadata(ctx)
	if values := metadata.ValueFromIncomingContext(ctx, certificateKey); len(values) == 1 {
		if certificate, err := x509.ParseCertificate([]byte(values[0])); err == nil {
			c.Certificate = certificate
		}
	}
	return c
}

// Forwarded returns the metadata with which a transport of this process passes on a verified client certificate.
// It returns nil if there is none. The transport must not pass on metadata with the same key from its callers.
func Forwarded(certificate *x509.Certificate) metadata.MD {
	if certificate == nil {
		return nil
	}
	return metadata.MD{certificateKey: {string(certificate.Raw)}}
}

// callerKey is the context key of the credentials of a caller.
type callerKey struct{}

// WithCredentials returns a context from which [PassedOn] reads the credentials of a caller.
func WithCredentials(ctx context.Context, c Credentials) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// PassedOn returns the metadata with which a server passes on the credentials of a caller to another server, which
// reads them with [FromProcess]. It is empty if there are none.
func PassedOn(ctx context.Context) metadata.MD {
	c, _ := ctx.Value(callerKey{}).(Credentials)
	sent := metadata.MD{}
	if c.Token != "" {
		sent.Set(TokenKey, "Bearer "+c.Token)
	}
	if c.Tenant != "" {
		sent.Set(TenantKey, c.Tenant)
	}
	return metadata.Join(sent, Forwarded(c.Certificate))
}

// bearerScheme is the only scheme of the metadata TokenKey. Schemes are not case-sensitive (RFC 9110, section 11.1).
const bearerScheme = "bearer "

func fromMetadata(ctx context.Context) Credentials {
	var c Credentials
	values := metadata.ValueFromIncomingContext(ctx, TokenKey)
	c.TokenSent = len(values) > 0
	if len(values) == 1 { // A repeated key is ambiguous, so it is no token.
		if v := values[0]; len(v) > len(bearerScheme) && strings.EqualFold(v[:len(bearerScheme)], bearerScheme) {
			c.Token = strings.TrimSpace(v[len(bearerScheme):])
		}
	}
	if values := metadata.ValueFromIncomingContext(ctx, TenantKey); len(values) > 0 {
		c.Tenant = strings.Join(values, ",") // Two different tenants are no tenant's name.
	}
	return c
}
