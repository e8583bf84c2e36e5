package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhq/parley/server/internal/config/configtest"
)

// TestPeerFaults checks the rules for other servers on the same store. DIR stands for a folder with files.
func TestPeerFaults(t *testing.T) {
	const store = "--store=redis --redis-url=redis://a:1 "
	const withTLS = store + "--tls-cert-file=DIR/cert.pem --tls-key-file=DIR/key.pem --advertise-address=a:1 "
	const nowhere = " does not say where other servers find this one; use its name or IP address, and the port of " +
		"--grpc-address"
	for _, test := range []struct{ args, want string }{
		{store + "--advertise-address=parley-0.parley:50051", ""},
		{store + "--advertise-address=[::1]:50051", ""},
		{withTLS + "--peer-ca-file=DIR/cert.pem", ""},
		{withTLS + "--tls-client-ca-file=DIR/cert.pem --tls-client-auth=required", ""},
		{"--advertise-address=a:1", "--advertise-address: needs --store redis"},
		{store + "--advertise-address=0.0.0.0:50051", `--advertise-address: "0.0.0.0:50051"` + nowhere},
		{store + "--advertise-address=[::]:50051", `--advertise-address: "[::]:50051"` + nowhere},
		{store + "--advertise-address=:50051", `--advertise-address: ":50051"` + nowhere},
		{store + "--advertise-address=a:0", `--advertise-address: "a:0"` + nowhere},
		{store + "--peer-ca-file=DIR/cert.pem", "--peer-ca-file: needs --advertise-address"},
		{
			store + "--advertise-address=a:1 --peer-ca-file=DIR/cert.pem",
			"--peer-ca-file: needs --tls-cert-file; all servers have TLS, or none",
		},
		{withTLS + "--peer-ca-file=DIR/empty", `--peer-ca-file: "DIR/empty" contains no certificate in PEM form`},
		{
			strings.NewReplacer("cert.pem", "server.pem", "key.pem", "server-key.pem").Replace(withTLS) +
				"--tls-client-ca-file=DIR/cert.pem --tls-client-auth=required",
			"--tls-cert-file: has a certificate that is not for clients, and servers call one another with theirs: add " +
				"client authentication to its extended key usage, or use --tls-client-auth optional",
		},
	} {
		dir := redisFiles(t)
		cert, key := configtest.Certificate(t, x509.ExtKeyUsageServerAuth)
		for name, text := range map[string]string{"server.pem": cert, "server-key.pem": key} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := load(t, strings.Fields(strings.ReplaceAll(test.args, "DIR", dir)), nil)
		if test.want == "" && err == nil {
			continue
		}
		_, ok := errors.AsType[*Error](err)
		if !ok || test.want == "" || strings.ReplaceAll(err.Error(), dir, "DIR") != "settings: "+test.want {
			t.Errorf("%s: error = %v\n  want  settings: %v", test.args, err, test.want)
		}
	}
}

// TestCertificateForPeers: a server presents its certificate to another one only if that can accept it.
func TestCertificateForPeers(t *testing.T) {
	for name, test := range map[string]struct {
		usages []x509.ExtKeyUsage
		other  bool // the other server accepts those of another authority
		want   bool
	}{
		"any usage":         {nil, false, true},
		"client":            {[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, false, true},
		"server only":       {[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, false, false},
		"another authority": {nil, true, false},
	} {
		cert, key := configtest.Certificate(t, test.usages...)
		own, err := tls.X509KeyPair([]byte(cert), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		accepted := own.Leaf.RawIssuer
		if test.other {
			accepted = []byte("another")
		}
		c := &Config{TLSCertFile: "cert.pem"}
		toPeers, err := c.TLSToPeers(func() *tls.Certificate { return &own })
		if err != nil {
			t.Fatal(err)
		}
		got, err := toPeers.GetClientCertificate(&tls.CertificateRequestInfo{
			AcceptableCAs: [][]byte{accepted}, Version: tls.VersionTLS13,
			SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
		})
		if err != nil || len(got.Certificate) > 0 != test.want {
			t.Errorf("%s: certificate = %v, %v, want one: %t", name, got, err, test.want)
		}
	}
}
