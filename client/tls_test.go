package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// authority signs certificates for a test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority creates an authority and writes its certificate to a file.
func newAuthority(t *testing.T, file string) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{key: newKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, file, "CERTIFICATE", der)
	return a
}

// issue writes a certificate for name, also valid for this machine, and its key to files.
func (a *authority) issue(t *testing.T, name, certFile, keyFile string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	write(t, file, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

// TestTLSFromFiles exchanges the certificates of both sides while a client is in use. Each new connection has the new
// ones; a faulty file does not matter until then, and not after a valid one.
func TestTLSFromFiles(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a := newAuthority(t, ca)
	a.issue(t, "first", cert, key)
	transport, err := client.TLSFromFiles(ca, cert, key)
	if err != nil {
		t.Fatal(err)
	}

	names := make(chan string, 1)
	start := func(a *authority, address string) (stop func(), listening string) {
		t.Helper()
		serverCert, serverKey := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
		a.issue(t, "server", serverCert, serverKey)
		pair, err := tls.LoadX509KeyPair(serverCert, serverKey)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AddCert(a.certificate)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		})))
		parleyv1.RegisterConversationServiceServer(server, &namingServer{names: names})
		ended := make(chan struct{})
		go func() { defer close(ended); _ = server.Serve(listener) }()
		return func() { server.Stop(); <-ended }, listener.Addr().String()
	}
	stop, address := start(a, "127.0.0.1:0")
	t.Cleanup(func() { stop() })
	c, err := client.Dial(address, grpc.WithTransportCredentials(transport))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	call := func(want string) {
		t.Helper()
		if err := getConversation(t.Context(), c); err != nil {
			t.Fatalf("call with the certificate %s: %v", want, err)
		}
		if got := <-names; got != want {
			t.Errorf("the client has the certificate %q, want %q", got, want)
		}
	}
	call("first")

	// Another authority signs all certificates. The server restarts.
	b := newAuthority(t, ca)
	b.issue(t, "second", cert, key)
	stop()
	stop, _ = start(b, address)
	call("second")

	// The file of the authority is damaged. The last valid files apply.
	write(t, ca, "")
	stop()
	stop, _ = start(b, address)
	call("second")
}

// namingServer sends the names in the certificates of its callers to names.
type namingServer struct {
	parleyv1.UnimplementedConversationServiceServer
	names chan<- string
}

func (s *namingServer) GetConversation(
	ctx context.Context, _ *parleyv1.GetConversationRequest,
) (*parleyv1.GetConversationResponse, error) {
	from, _ := peer.FromContext(ctx)
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, errRefused
	}
	s.names <- info.State.PeerCertificates[0].Subject.CommonName
	return &parleyv1.GetConversationResponse{}, nil
}

func TestTLSFromFilesRefusesFaultyFiles(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	newAuthority(t, ca).issue(t, "c", cert, key)
	none, text := filepath.Join(dir, "none"), filepath.Join(dir, "text")
	write(t, text, "not a certificate")
	tests := []struct {
		name          string
		ca, cert, key string
		want          string // empty: no error
	}{
		{"all", ca, cert, key, ""},
		{"only the authority", ca, "", "", ""},
		{"only the system's authorities", "", "", "", ""},
		{"no key", ca, cert, "", "name both"},
		{"no certificate", ca, "", key, "name both"},
		{"no such authority", none, "", "", none},
		{"authority without PEM", text, "", "", "contains no certificate in PEM form"},
		{"authority is a key", key, "", "", "contains no certificate in PEM form"},
		{"no such certificate", "", none, key, none},
		{"no such key", "", cert, none, none},
		{"certificate without PEM", "", text, key, "failed to find any PEM data"},
		{"key of another certificate", "", ca, key, "private key does not match public key"},
	}
	for _, test := range tests {
		_, err := client.TLSFromFiles(test.ca, test.cert, test.key)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: TLSFromFiles() = %v, want no error", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: TLSFromFiles() = %v, want an error with %q", test.name, err, test.want)
		}
	}
}
