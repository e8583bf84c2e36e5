package parleydtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ClientURI is the subject alternative name of the client certificate of a [SignIn]. Its common name is ClientName.
const (
	ClientURI  = "spiffe://example/client"
	ClientName = "client"
)

// SignIn is a folder with files for TLS and sign-in. Create it with [NewSignIn].
type SignIn struct {
	Dir string

	CAFile                        string // certificate of the authority of the other certificates
	CertFile, KeyFile             string // of the server; valid for localhost, 127.0.0.1 and ::1
	ClientCertFile, ClientKeyFile string // of a client with ClientURI and ClientName
	TokenFile                     string // of the server; CreateToken creates it

	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
}

// NewSignIn creates an authority, a certificate of the server and one of a client in a folder that exists. The files
// are ca.pem, cert.pem and key.pem, client-cert.pem and client-key.pem.
func NewSignIn(dir string) (*SignIn, error) {
	in := func(name string) string { return filepath.Join(dir, name) }
	s := &SignIn{
		Dir: dir, CAFile: in("ca.pem"), CertFile: in("cert.pem"), KeyFile: in("key.pem"),
		ClientCertFile: in("client-cert.pem"), ClientKeyFile: in("client-key.pem"), TokenFile: in("tokens.yaml"),
	}
	var err error
	if s.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	s.ca = &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of tests"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	signed, err := sign(s.ca, s.ca, &s.caKey.PublicKey, s.caKey)
	if err != nil {
		return nil, err
	}
	if s.ca, err = x509.ParseCertificate(signed); err != nil {
		return nil, err
	}
	return s, errors.Join(
		writePEM(s.CAFile, "CERTIFICATE", signed),
		s.WriteServer(s.CertFile, s.KeyFile),
		s.WriteClient(s.ClientCertFile, s.ClientKeyFile, ClientName, ClientURI),
	)
}

// WriteServer writes a new certificate of the server and its key. It replaces each file by a rename.
func (s *SignIn) WriteServer(certFile, keyFile string) error {
	return s.WriteServerUntil(certFile, keyFile, time.Time{})
}

// WriteServerUntil is like WriteServer for a certificate that expires at a time. The zero time is tomorrow.
func (s *SignIn) WriteServerUntil(certFile, keyFile string, expiry time.Time) error {
	return s.write(certFile, keyFile, &x509.Certificate{
		NotAfter: expiry,
		Subject:  pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	})
}

// WriteClient writes a certificate of a client with a common name and a URI, and its key.
func (s *SignIn) WriteClient(certFile, keyFile, name, uri string) error {
	parsed, err := url.Parse(uri)
	if err != nil {
		return err
	}
	return s.write(certFile, keyFile, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, URIs: []*url.URL{parsed},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	})
}

// write makes a key, signs a certificate, and writes both.
func (s *SignIn) write(certFile, keyFile string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	signed, err := sign(template, s.ca, &key.PublicKey, s.caKey)
	if err != nil {
		return err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(certFile, "CERTIFICATE", signed), writePEM(keyFile, "PRIVATE KEY", encoded))
}

// sign completes a template and signs it.
func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

// writePEM replaces a file.
func writePEM(path, kind string, data []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ServerFlags returns the flags of parleyd for TLS, and for tokens if there are any.
func (s *SignIn) ServerFlags() []string {
	flags := []string{"--tls-cert-file=" + s.CertFile, "--tls-key-file=" + s.KeyFile}
	if _, err := os.Stat(s.TokenFile); err == nil {
		flags = append(flags, "--auth-token-file="+s.TokenFile)
	}
	return flags
}

// CreateToken creates a token with "parleyd token create" and returns it. parleyd is a command of the program; its
// arguments are replaced. flags are those of the command, for example --tenant=acme and --role=writer.
func (s *SignIn) CreateToken(parleyd *exec.Cmd, flags ...string) (token string, err error) {
	parleyd.Args = slices.Concat(parleyd.Args[:1], []string{"token", "create", "--file=" + s.TokenFile}, flags)
	var errs bytes.Buffer
	parleyd.Stderr = &errs
	out, err := parleyd.Output()
	if err != nil {
		return "", fmt.Errorf("create a token: %w: %s", err, errs.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// ClientTLS returns the TLS settings of a client. If withCertificate is set, it presents the client certificate.
func (s *SignIn) ClientTLS(withCertificate bool) (*tls.Config, error) {
	roots := x509.NewCertPool()
	roots.AddCert(s.ca)
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if withCertificate {
		pair, err := tls.LoadX509KeyPair(s.ClientCertFile, s.ClientKeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
