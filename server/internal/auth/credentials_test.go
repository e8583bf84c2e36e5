package auth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/parleyhq/parley/server/internal/auth"
)

// anyCertificate is a verifier that accepts every certificate, as that of a proxy.
type anyCertificate struct{}

// Verify returns an administrator of the server.
func (anyCertificate) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Certificate == nil {
		return auth.Identity{}, errors.New("no certificate")
	}
	return auth.Identity{Name: "proxy", Tenants: []string{auth.AllTenants}, Role: auth.Admin}, nil
}

func newCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// TestTokenBeforeCertificate checks that a caller with a token is never signed in by the certificate of its connection,
// which may be that of a proxy.
func TestTokenBeforeCertificate(t *testing.T) {
	const refused = "no valid credential; no certificate; unknown token"
	certificate := newCertificate(t)
	a := auth.New(time.Now, anyCertificate{}, one(auth.Reader, "acme"))
	for _, test := range []struct {
		name   string
		values []string // of the metadata authorization
		want   string
	}{
		{"no token", nil, `admin of "acme", all true`},
		{"valid token", []string{"Bearer t"}, `reader of "acme", all false`},
		{"wrong token", []string{"Bearer x"}, refused},
		{"malformed", []string{"t"}, refused},
		{"other scheme", []string{"Basic dDp0"}, refused},
		{"no text after the scheme", []string{"Bearer "}, refused},
		{"empty", []string{""}, refused},
		{"repeated", []string{"Bearer t", "Bearer t"}, refused},
	} {
		md := metadata.MD{auth.TokenKey: test.values, auth.TenantKey: {"acme"}}
		network := peer.NewContext(metadata.NewIncomingContext(t.Context(), md), &peer.Peer{
			AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
				VerifiedChains: [][]*x509.Certificate{{certificate}},
			}},
		})
		process := metadata.NewIncomingContext(t.Context(), metadata.Join(md, auth.Forwarded(certificate)))
		for from, c := range map[string]auth.Credentials{
			"network": auth.FromNetwork(network), "process": auth.FromProcess(process),
		} {
			if c.Certificate == nil {
				t.Fatalf("credentials from the %s have no certificate", from)
			}
			if got := outcome(a.Authorize(t.Context(), read, c)); got != test.want {
				t.Errorf("Authorize(%s and a certificate) from the %s = %q, want %q", test.name, from, got, test.want)
			}
		}
	}
}

// TestCredentialsText checks that no format and no log entry contains the token.
func TestCredentialsText(t *testing.T) {
	const secret = "parley_secret"
	c := auth.Credentials{Token: secret, Tenant: "acme"}
	type wrapper struct{ Inner auth.Credentials }
	var texts []string
	for _, value := range []any{c, &c, wrapper{c}, &wrapper{c}, []auth.Credentials{c}, map[string]auth.Credentials{"c": c}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			texts = append(texts, fmt.Sprintf(verb, value))
		}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).InfoContext(t.Context(), "text", "value", value)
		slog.New(slog.NewJSONHandler(&log, nil)).InfoContext(t.Context(), "json", "value", value)
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, log.String(), string(encoded))
	}
	for _, text := range texts {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("text = %s, want none with the token", text)
		}
	}
	want := `{token: true, tenant: "acme", certificate: false}`
	if c.String() != want || c.LogValue().String() != want {
		t.Errorf("String() = %s, LogValue() = %s, want %s", c, c.LogValue(), want)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).InfoContext(t.Context(), "json", "value", c)
	if !strings.Contains(log.String(), "token: true") {
		t.Errorf("log entry = %s, want it to say that there is a token", log.String())
	}
}
