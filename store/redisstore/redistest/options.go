package redistest

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Option changes how [Start] and [StartCluster] start servers.
type Option func(tb testing.TB, s *settings)

// settings are what options change.
type settings struct {
	extra string // lines of the configuration

	password, passwordFile    string
	caFile, certFile, keyFile string
	tls                       *tls.Config // of clients; nil without TLS
}

// Setting sets a directive of the configuration, for example Setting("maxmemory", "50mb"). It replaces the
// settings of this package.
func Setting(name string, values ...string) Option {
	return func(_ testing.TB, s *settings) { s.extra += directive(name, values...) }
}

// Password makes clients sign in as the default user with a password, which is not empty.
func Password(password string) Option {
	return func(tb testing.TB, s *settings) {
		tb.Helper()
		s.password, s.passwordFile = password, filepath.Join(tb.TempDir(), "password")
		if err := os.WriteFile(s.passwordFile, []byte(password), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// TLS makes the server serve with TLS only, with certificates of the test. Clients may present a
// certificate: Setting("tls-auth-clients", "yes") makes them.
func TLS() Option {
	return func(tb testing.TB, s *settings) {
		tb.Helper()
		dir := tb.TempDir()
		s.caFile = filepath.Join(dir, "ca.pem")
		s.certFile, s.keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		roots, err := writeCertificates(s.caFile, s.certFile, s.keyFile)
		if err != nil {
			tb.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
		if err != nil {
			tb.Fatal(err)
		}
		s.tls = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
}

func applyOptions(tb testing.TB, options []Option) settings {
	tb.Helper()
	var s settings
	for _, o := range options {
		o(tb, &s)
	}
	return s
}

// config returns the configuration of a server with its data in dir. It has no ports. Of two lines about
// one directive, the last one applies.
func (s settings) config(dir string) string {
	var c strings.Builder
	set := func(name string, values ...string) { c.WriteString(directive(name, values...)) }
	set("bind", host)
	set("dir", dir)
	set("appendonly", "yes")
	set("appendfsync", "everysec")
	set("save", "")
	set("maxmemory-policy", "noeviction")
	set("shutdown-timeout", "0") // seconds to wait for replicas
	// Milliseconds that a script may take. Tests of the store hold 100,000 ids in one call, the API at most 1000.
	set("busy-reply-threshold", "60000")
	if s.password != "" {
		set("requirepass", s.password)
		set("masterauth", s.password)
	}
	if s.tls != nil {
		set("tls-ca-cert-file", s.caFile)
		set("tls-cert-file", s.certFile)
		set("tls-key-file", s.keyFile)
		set("tls-auth-clients", "optional")
		set("tls-replication", "yes")
		set("tls-cluster", "yes")
	}
	c.WriteString(s.extra)
	return c.String()
}
