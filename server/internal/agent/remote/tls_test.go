package remote

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
)

// authority is a certificate authority for a test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pool        *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{pool: x509.NewCertPool()}
	a.certificate, a.key = sign(t, template, template, nil)
	a.pool.AddCert(a.certificate)
	return a
}

// issue returns a certificate for clients and servers.
func (a *authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	certificate, key := sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, a.key)
	return tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}
}

// sign returns a certificate with a new key. If signer is nil, it is self-signed.
func sign(
	t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey,
) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func TestTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	s := start(t, "127.0.0.1:0", health.NewServer(), answerTexts("secure"), grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ours.issue(t, "planner.internal")},
		ClientCAs:    ours.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	us := []tls.Certificate{ours.issue(t, "parley")}
	tests := []struct {
		name   string
		config *tls.Config
		want   string
	}{
		{"right", &tls.Config{RootCAs: ours.pool, ServerName: "planner.internal", Certificates: us}, ""},
		{
			"unknown authority", &tls.Config{RootCAs: theirs.pool, ServerName: "planner.internal", Certificates: us},
			"unknown authority",
		},
		{"host of the address", &tls.Config{RootCAs: ours.pool, Certificates: us}, "127.0.0.1"},
		{"other name", &tls.Config{RootCAs: ours.pool, ServerName: "other.internal", Certificates: us}, "not other.internal"},
		{"no client certificate", &tls.Config{RootCAs: ours.pool, ServerName: "planner.internal"}, ""},
		{"plaintext", nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := open(t, Config{Address: s.address, TLS: test.config})
			if test.name == "right" {
				if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
					t.Errorf("Respond = %v, %v, want one piece", answer, err)
				}
				return
			}
			until(t, a, connectivity.TransientFailure)
			a.readyTimeout = 50 * time.Millisecond
			_, err := collect(t.Context(), a, nil)
			got := mustFail(t, err)
			if got.Message != "the agent is not available" || !strings.HasPrefix(got.Detail, s.address+": ") ||
				!strings.Contains(got.Detail, test.want) || !got.Retryable {
				t.Errorf("error = %+v, want one with %q", got, test.want)
			}
		})
	}
}
