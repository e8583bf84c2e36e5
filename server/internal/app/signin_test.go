package app

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/config"
)

// TestKeyRemovedByIssuer checks that the server ends the streams of a key that its issuer has removed. It lasts as long
// as the interval between two requests for the keys.
func TestKeyRemovedByIssuer(t *testing.T) {
	if testing.Short() {
		t.Skip("lasts 5 s")
	}
	first, second := newSigningKey(t), newSigningKey(t)
	var current atomic.Pointer[ed25519.PrivateKey]
	current.Store(&first)
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	t.Cleanup(issuer.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		key := jose.JSONWebKey{Key: current.Load().Public(), KeyID: "k1"}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key}})
	})
	s, err := openSignIn(&config.Config{
		OIDCIssuer: issuer.URL, OIDCAudience: "parley", OIDCTenantClaim: "tenant", OIDCRoleClaim: "role",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	const watch = parleyv1.ConversationService_WatchConversations_FullMethodName
	old := auth.Credentials{Token: sign(t, first, issuer.URL)}
	caller, err := s.auth.Authorize(t.Context(), watch, old)
	if err != nil {
		t.Fatal(err)
	}
	ctx, release := s.auth.Follow(t.Context(), watch, old, caller)
	defer release()
	current.Store(&second)
	next := auth.Credentials{Token: sign(t, second, issuer.URL)}
	for err = auth.ErrUnauthenticated; err != nil && t.Context().Err() == nil; {
		_, err = s.auth.Authorize(t.Context(), watch, next) // A refusal takes some milliseconds.
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, auth.ErrUnauthenticated) {
		t.Errorf("cause of the end of the stream = %v, want ErrUnauthenticated", err)
	}
}

func newSigningKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign returns a token of a writer.
func sign(t *testing.T, key ed25519.PrivateKey, issuer string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key},
		(&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(fmt.Appendf(nil,
		`{"iss":%q,"aud":"parley","sub":"shop","exp":%d,"tenant":"acme","role":"writer"}`,
		issuer, time.Now().Add(time.Hour).Unix()))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
