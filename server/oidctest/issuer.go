// Package oidctest signs in with the tokens of a real OpenID Connect issuer, which runs in the test.
//
// The package is a module of its own, so that the issuer's dependencies stay out of the main module. `make testoidc`
// runs it. Start at [NewIssuer].
package oidctest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// The client that the example storage knows, with the claims of its tokens.
const (
	clientID     = "sid1"
	clientSecret = "verysecret"
	// Audience is the audience of all tokens.
	Audience = clientID
)

// Issuer is an OpenID Connect provider. It can stop, and start again at the same address.
type Issuer struct {
	URL string

	tb      testing.TB
	storage *keys
	handler http.Handler
	server  *httptest.Server // nil while the issuer is stopped
}

// keys is the example storage with keys that change, and with tokens that are JWTs with claims of Parley.
type keys struct {
	*storage.Storage

	mu      sync.Mutex
	claims  map[string]any
	signing *key
	public  []op.Key
}

// key is a key of the issuer, and its own public half.
type key struct {
	id      string
	private *rsa.PrivateKey
}

// SignatureAlgorithm returns RS256.
func (*key) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.RS256 }

// Key returns the private key.
func (k *key) Key() any { return k.private }

// ID returns the id.
func (k *key) ID() string { return k.id }

type publicKey struct{ *key }

// Algorithm returns RS256.
func (publicKey) Algorithm() jose.SignatureAlgorithm { return jose.RS256 }

// Use returns that the key is for signatures.
func (publicKey) Use() string { return "sig" }

// Key returns the public key.
func (k publicKey) Key() any { return k.private.Public() }

// SigningKey returns the key for new tokens.
func (s *keys) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signing, nil
}

// SignatureAlgorithms returns RS256.
func (*keys) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.RS256}, nil
}

// KeySet returns the public keys.
func (s *keys) KeySet(context.Context) ([]op.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.public, nil
}

// ClientCredentials returns a client whose tokens are JWTs.
func (s *keys) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	c, err := s.Storage.ClientCredentials(ctx, id, secret)
	return jwtClient{c}, err
}

type jwtClient struct{ op.Client }

// AccessTokenType returns JWT.
func (jwtClient) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

// GetPrivateClaimsFromScopes returns the claims of new tokens.
func (s *keys) GetPrivateClaimsFromScopes(context.Context, string, string, []string) (map[string]any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims, nil
}

// NewIssuer starts an issuer on a free port. It ends with the test.
func NewIssuer(tb testing.TB) *Issuer {
	tb.Helper()
	i := &Issuer{tb: tb, storage: &keys{Storage: storage.NewStorage(storage.NewUserStore("http://localhost"))}}
	i.Rotate(true)
	i.start("127.0.0.1:0")
	tb.Cleanup(i.Leave)
	i.URL = i.server.URL
	provider, err := op.NewProvider(
		&op.Config{CryptoKey: [32]byte{1}, SupportedScopes: []string{oidc.ScopeOpenID}}, i.storage,
		op.StaticIssuer(i.URL), op.WithAllowInsecure(), // It is on a loopback address.
	)
	if err != nil {
		tb.Fatal(err)
	}
	i.handler = provider
	return i
}

func (i *Issuer) start(address string) {
	i.tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(i.tb.Context(), "tcp", address)
	if err != nil {
		i.tb.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.handler.ServeHTTP(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	i.server = server
}

// Leave stops the issuer. Its address then refuses connections.
func (i *Issuer) Leave() {
	if i.server != nil {
		i.server.Close()
		i.server = nil
	}
}

// Return starts the issuer again, at the same address.
func (i *Issuer) Return() {
	i.tb.Helper()
	i.start(strings.TrimPrefix(i.URL, "http://"))
}

// Rotate makes the issuer sign with a new key. If drop is set, it no longer publishes its other keys.
func (i *Issuer) Rotate(drop bool) {
	i.tb.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		i.tb.Fatal(err)
	}
	i.storage.mu.Lock()
	defer i.storage.mu.Unlock()
	if drop {
		i.storage.public = nil
	}
	i.storage.signing = &key{id: rand.Text(), private: private}
	i.storage.public = append(slices.Clip(i.storage.public), publicKey{i.storage.signing})
}

// Token returns a new token with additional claims, as a service gets one with its client credentials.
func (i *Issuer) Token(ctx context.Context, claims map[string]any) (string, error) {
	i.storage.mu.Lock()
	i.storage.claims = claims
	i.storage.mu.Unlock()
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {oidc.ScopeOpenID}}
	body := strings.NewReader(form.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, i.URL+"/oauth/token", body)
	if err != nil {
		return "", err
	}
	request.SetBasicAuth(clientID, clientSecret)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := i.server.Client().Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var reply struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil || reply.AccessToken == "" {
		return "", fmt.Errorf("the issuer answered %s: %s", response.Status, answer)
	}
	return reply.AccessToken, nil
}
