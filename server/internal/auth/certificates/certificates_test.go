package certificates_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/certificates"
)

// authority is a certificate authority.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority returns an authority that signed its own certificate.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.certificate, a.key = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// sign completes a template and signs it.
func (a *authority) sign(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// client returns a client certificate with a common name and URIs.
func (a *authority) client(t *testing.T, cn string, uris ...string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: cn}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	return a.sign(t, template)
}

func rules() []certificates.Rule {
	return []certificates.Rule{
		{CN: "shop", Tenants: []string{"shop"}, Role: auth.Reader},
		{URI: "spiffe://example/acme", Tenants: []string{"acme"}, Role: auth.Writer},
		{URI: "spiffe://example/ops", Tenants: []string{"*"}, Role: auth.Admin},
		{CN: "spiffe://example/other", Tenants: []string{"cn"}, Role: auth.Reader},
	}
}

func TestVerify(t *testing.T) {
	ca := newAuthority(t)
	v, err := certificates.New(rules())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cn   string
		uris []string
		want *auth.Identity // without the expiry
	}{
		{"URI", "", []string{"spiffe://example/acme"}, &auth.Identity{
			Name: "spiffe://example/acme", Tenants: []string{"acme"}, Role: auth.Writer,
		}},
		{"URI before CN", "shop", []string{"spiffe://example/acme"}, &auth.Identity{
			Name: "spiffe://example/acme", Tenants: []string{"acme"}, Role: auth.Writer,
		}},
		{"first rule of several URIs", "", []string{"spiffe://example/ops", "spiffe://example/acme"}, &auth.Identity{
			Name: "spiffe://example/acme", Tenants: []string{"acme"}, Role: auth.Writer,
		}},
		{"first rule of several URIs in order", "", []string{"spiffe://example/acme", "spiffe://example/ops"}, &auth.Identity{
			Name: "spiffe://example/acme", Tenants: []string{"acme"}, Role: auth.Writer,
		}},
		{"second URI", "", []string{"https://x.example", "spiffe://example/ops"}, &auth.Identity{
			Name: "spiffe://example/ops", Tenants: []string{"*"}, Role: auth.Admin,
		}},
		{"CN", "shop", nil, &auth.Identity{Name: "shop", Tenants: []string{"shop"}, Role: auth.Reader}},
		{"CN with a URI without rule", "shop", []string{"spiffe://example/x"}, &auth.Identity{
			Name: "shop", Tenants: []string{"shop"}, Role: auth.Reader,
		}},
		{"no rule", "other", []string{"spiffe://example/x"}, nil},
		{"longer URI", "", []string{"spiffe://example/acme/x"}, nil},
		{"URI in other case", "", []string{"spiffe://example/ACME"}, nil},
		{"CN in other case", "Shop", nil, nil},
		{"CN like a URI of a rule", "spiffe://example/acme", nil, nil},
		{"URI like a CN of a rule", "", []string{"spiffe://example/other"}, nil},
		{"no name", "", nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			certificate, _ := ca.client(t, test.cn, test.uris...)
			got, err := v.Verify(t.Context(), auth.Credentials{Certificate: certificate})
			if test.want == nil {
				if err == nil {
					t.Errorf("Verify() = %+v, want an error", got)
				}
				return
			}
			test.want.Expires = certificate.NotAfter
			test.want.ID = fmt.Sprintf("certificate:%x", sha256.Sum256(certificate.Raw))
			if diff := cmp.Diff(*test.want, got); err != nil || diff != "" {
				t.Errorf("Verify() = error %v, want none; identity (-want +got):\n%s", err, diff)
			}
		})
	}
	if got, err := v.Verify(t.Context(), auth.Credentials{Token: "x"}); err == nil {
		t.Errorf("Verify(no certificate) = %+v, want an error", got)
	}
}

func TestExpiredCertificate(t *testing.T) {
	certificate, _ := newAuthority(t).client(t, "shop")
	v, err := certificates.New(rules())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		now  time.Time
		want error
	}{
		{certificate.NotAfter.Add(-time.Second), nil},
		{certificate.NotAfter, auth.ErrUnauthenticated},
	} {
		a := auth.New(func() time.Time { return test.now }, v)
		_, err := a.Authorize(t.Context(), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
			auth.Credentials{Certificate: certificate})
		if !errors.Is(err, test.want) {
			t.Errorf("Authorize() at %s of a certificate until %s = %v, want %v", test.now, certificate.NotAfter, err, test.want)
		}
	}
}

func TestFaults(t *testing.T) {
	acme := []string{"acme"}
	tests := []struct {
		rules []certificates.Rule
		want  string
	}{
		{[]certificates.Rule{{Tenants: acme, Role: auth.Reader}}, "[0]: must have uri or cn"},
		{[]certificates.Rule{{URI: "a:b", CN: "c", Tenants: acme, Role: auth.Reader}}, "[0]: must have either uri or cn, not both"},
		{[]certificates.Rule{{URI: "acme", Tenants: acme, Role: auth.Reader}}, `[0].uri: "acme" is not a URI`},
		{[]certificates.Rule{{URI: "a:\x00", Tenants: acme, Role: auth.Reader}}, "is not a URI"},
		{[]certificates.Rule{{CN: "a\nb", Tenants: acme, Role: auth.Reader}}, "[0].cn: use at most 2048 bytes of printable text"},
		{[]certificates.Rule{{CN: "c", Role: auth.Reader}}, "[0].tenants: no tenant"},
		{[]certificates.Rule{{CN: "c", Tenants: []string{"a/b"}, Role: auth.Reader}}, `[0].tenants: tenant "a/b"`},
		{[]certificates.Rule{{CN: "c", Tenants: acme}}, "[0].role: use reader, writer or admin"},
		{append(rules(), rules()[0]), `[4].cn: "shop" is also in rule [0]; delete one of them`},
		{append(rules(), rules()[1]), `[4].uri: "spiffe://example/acme" is also in rule [1]`},
		{[]certificates.Rule{{CN: "c"}, {}}, "[0].tenants: no tenant; name at least one, or \"*\" for all\n[0].role: use reader, " +
			"writer or admin\n[1]: must have uri or cn\n[1].tenants"},
	}
	for _, test := range tests {
		if _, err := certificates.New(test.rules); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("New(%+v) = %v, want an error with %q", test.rules, err, test.want)
		}
	}
}

// TestOnlyVerified checks with real handshakes that the certificates of another authority do not reach the verifier.
func TestOnlyVerified(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	serverCertificate, serverKey := ca.sign(t, &x509.Certificate{DNSNames: []string{"server"}})
	for name, test := range map[string]struct {
		authority *authority
		accepted  bool
	}{"ours": {ca, true}, "foreign": {foreign, false}} {
		t.Run(name, func(t *testing.T) {
			certificate, key := test.authority.client(t, "shop")
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			server := tls.Server(near, &tls.Config{
				Certificates: []tls.Certificate{{Certificate: [][]byte{serverCertificate.Raw}, PrivateKey: serverKey}},
				ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pool, MinVersion: tls.VersionTLS12,
			})
			client := tls.Client(far, &tls.Config{
				RootCAs: pool, ServerName: "server", MinVersion: tls.VersionTLS12,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return &tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}, nil
				},
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = client.Read(make([]byte, 1)) // It handshakes, and reads alerts until the server closes.
			}()
			err := server.HandshakeContext(t.Context())
			if accepted := err == nil && len(server.ConnectionState().VerifiedChains) > 0; accepted != test.accepted {
				t.Errorf("handshake = %v, verified chains %d, want accepted %t", err,
					len(server.ConnectionState().VerifiedChains), test.accepted)
			}
			near.Close()
			<-done
		})
	}
}
