package oidc_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/oidc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is the time at which tests begin.
func start() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }

// signer is a key of an issuer.
type signer struct {
	id        string
	algorithm jose.SignatureAlgorithm
	private   any
	public    any
}

func newSigner(tb testing.TB, id string, algorithm jose.SignatureAlgorithm) *signer {
	tb.Helper()
	var private crypto.Signer
	var err error
	switch algorithm {
	case jose.RS256, jose.PS256:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	case jose.ES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil || private == nil {
		tb.Fatalf("key for %s: %v", algorithm, err)
	}
	return &signer{id: id, algorithm: algorithm, private: private, public: private.Public()}
}

// issuer is a server with discovery and keys, which a test can change.
type issuer struct {
	url string

	mu       sync.Mutex
	keys     []jose.JSONWebKey
	answer   http.HandlerFunc // if not nil, in place of the keys
	requests int              // for the keys
}

func newIssuer(tb testing.TB, signers ...*signer) *issuer {
	tb.Helper()
	i := &issuer{}
	i.setKeys(signers...)
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.requests++
		answer := i.answer
		i.mu.Unlock()
		if answer == nil {
			answer = i.writeKeys
		}
		answer(w, r)
	})
	server := httptest.NewServer(mux)
	tb.Cleanup(server.Close)
	i.url = server.URL
	return i
}

func (i *issuer) writeKeys(w http.ResponseWriter, _ *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: i.keys})
}

func (i *issuer) setKeys(signers ...*signer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = nil
	for _, s := range signers {
		i.keys = append(i.keys, jose.JSONWebKey{Key: s.public, KeyID: s.id, Algorithm: string(s.algorithm), Use: "sig"})
	}
}

// setAnswer sets what the issuer answers in place of its keys; nil: its keys.
func (i *issuer) setAnswer(answer http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
}

func (i *issuer) requestCount() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests
}

func away(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// claims returns the claims of a valid token, with changes. A change to nil deletes a claim.
func (i *issuer) claims(changes map[string]any) map[string]any {
	claims := map[string]any{
		"iss": i.url, "aud": "parley", "sub": "shop", "exp": start().Add(time.Hour).Unix(), "iat": start().Unix(),
		"tenant": "acme", "role": "writer",
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

// sign returns a token.
func (s *signer) sign(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	if s.id != "" {
		options = options.WithHeader("kid", s.id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: s.algorithm, Key: s.private}, options)
	if err != nil {
		tb.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		tb.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		tb.Fatal(err)
	}
	return token
}

// fixture is a verifier with a clock and a log.
type fixture struct {
	*oidc.Verifier
	*issuer
	t   testing.TB
	log *logBuffer

	mu  sync.Mutex
	now time.Time
}

func newFixture(tb testing.TB, i *issuer, change func(*oidc.Options)) *fixture {
	tb.Helper()
	f := &fixture{issuer: i, t: tb, log: &logBuffer{}, now: start()}
	options := oidc.Options{
		Issuer: i.url, Audience: "parley", Now: f.clock,
		Log: slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&options)
	}
	v, err := oidc.New(options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(v.Close)
	f.Verifier = v
	return f
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// advance moves the clock.
func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// verify verifies a token. It checks that an error does not contain a part of the token.
func (f *fixture) verify(token string) (auth.Identity, error) {
	f.t.Helper()
	identity, err := f.Verify(f.t.Context(), auth.Credentials{Token: token})
	for part := range strings.SplitSeq(token, ".") {
		if err != nil && len(part) > 8 && strings.Contains(err.Error()+f.log.String(), part) {
			f.t.Errorf("error or log contains a part of the token: %v", err)
		}
	}
	return identity, err
}

// accept checks that a token is accepted.
func (f *fixture) accept(what, token string) {
	f.t.Helper()
	if _, err := f.verify(token); err != nil {
		f.t.Errorf("Verify(%s) = %v, want no error", what, err)
	}
}

// reject checks that a token is rejected with a cause.
func (f *fixture) reject(what, token, want string) {
	f.t.Helper()
	if identity, err := f.verify(token); err == nil || !strings.Contains(err.Error(), want) {
		f.t.Errorf("Verify(%s) = %+v, %v, want an error with %q", what, identity, err, want)
	}
}

// logBuffer collects the log.
type logBuffer struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

// Write appends to the buffer.
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Write(p)
}

// String returns what was written.
func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.String()
}
