package oidctest_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/oidc"
	"github.com/parleyhq/parley/server/oidctest"
)

const read = "/parley.v1.ConversationService/GetConversation"

// signIn is an authenticator with a clock.
type signIn struct {
	*auth.Authenticator
	t *testing.T

	mu  sync.Mutex
	now time.Time
}

func newSignIn(t *testing.T, i *oidctest.Issuer) *signIn {
	t.Helper()
	s := &signIn{t: t, now: time.Now()}
	v, err := oidc.New(oidc.Options{
		Issuer: i.URL, Audience: oidctest.Audience, TenantClaim: "parley.tenants", RoleClaim: "parley.roles",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: s.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	s.Authenticator = auth.New(s.clock, v)
	return s
}

func (s *signIn) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *signIn) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// want checks whether a token is accepted.
func (s *signIn) want(what, token string, accepted bool) {
	s.t.Helper()
	p, err := s.Authorize(s.t.Context(), read, auth.Credentials{Token: token})
	if (err == nil) != accepted {
		s.t.Errorf("Authorize(%s) = %v, want accepted %t", what, err, accepted)
	}
	if err == nil && (p.Tenant != "acme" || p.Role != auth.Writer || p.Name != "sid1") {
		s.t.Errorf("Authorize(%s) = %+v, want the writer sid1 of acme", what, p)
	}
}

// wantNew checks that a token of a new key is accepted after a refusal, which makes the server read the keys.
func (s *signIn) wantNew(what, token string) {
	s.t.Helper()
	c := auth.Credentials{Token: token}
	for {
		switch _, err := s.Authorize(s.t.Context(), read, c); { // A refusal takes some milliseconds.
		case err == nil:
			s.want(what, token, true)
			return
		case s.t.Context().Err() != nil:
			s.t.Fatalf("Authorize(%s) = %v, want that it is accepted at last", what, err)
		}
	}
}

// TestIssuer signs in, rotates the keys of the issuer, and stops it for a time.
func TestIssuer(t *testing.T) {
	issuer := oidctest.NewIssuer(t)
	token := func() string {
		t.Helper()
		text, err := issuer.Token(t.Context(), map[string]any{
			"parley": map[string]any{"tenants": []string{"acme"}, "roles": []string{"writer", "other"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := token()

	issuer.Leave()
	s := newSignIn(t, issuer) // It starts without its issuer.
	s.want("token while the issuer was never reached", first, false)
	issuer.Return()
	s.advance(5 * time.Second)
	s.want("token", first, true)

	issuer.Rotate(false)
	s.advance(5 * time.Second)
	second := token()
	s.want("token of the new key before the keys are read", second, false)
	s.wantNew("token of the new key", second)
	s.want("token of the first key", first, true)

	third := token()
	issuer.Leave()
	for range 12 {
		s.advance(5 * time.Second)
		s.want("known token while the issuer is stopped", first, true)
		s.want("new token while the issuer is stopped", third, true)
	}
	issuer.Return()

	issuer.Rotate(true)
	s.advance(5 * time.Second)
	fourth := token()
	s.wantNew("token of the last key", fourth)
	s.want("token of a removed key", first, false)
	s.advance(10 * time.Minute)
	s.want("expired token", fourth, false)
}

// TestClaimsOfIssuer checks tokens without the claims of Parley and with another audience.
func TestClaimsOfIssuer(t *testing.T) {
	issuer := oidctest.NewIssuer(t)
	s := newSignIn(t, issuer)
	for what, claims := range map[string]map[string]any{
		"token without claims": nil,
		"token without role":   {"parley": map[string]any{"tenants": "acme"}},
		"token without tenant": {"parley": map[string]any{"roles": "writer"}},
	} {
		token, err := issuer.Token(t.Context(), claims)
		if err != nil {
			t.Fatal(err)
		}
		s.want(what, token, false)
	}
	other := oidctest.NewIssuer(t)
	token, err := other.Token(t.Context(), map[string]any{"parley": map[string]any{"tenants": "acme", "roles": "writer"}})
	if err != nil {
		t.Fatal(err)
	}
	s.want("token of another issuer", token, false)
}
