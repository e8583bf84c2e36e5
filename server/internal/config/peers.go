package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"

	"github.com/parleyhq/parley/server/internal/secretfile"
)

// Peers are the settings for other servers on the same store.
type Peers struct {
	AdvertiseAddress string // at which they call this server; empty: it is the only one
	CAFile           string // authorities of their certificates; empty: those of the system
}

// peerSettings returns the rows of the table of settings for other servers on the same store.
func (c *Config) peerSettings() []*setting {
	return []*setting{
		newSetting("advertise-address", httpAddress(&c.Peers.AdvertiseAddress, ""),
			"host:port at which other servers on the same Redis call this one; empty: it is the only server"),
		newSetting("peer-ca-file", text(&c.Peers.CAFile, "", 0, 4*kib, "path"),
			"certificates of the authorities of the other servers, in PEM form; empty: those of the system"),
	}
}

// checkPeers checks the settings for other servers.
func (l *loader) checkPeers() {
	c := l.config
	at, name := c.Peers.AdvertiseAddress, "advertise-address"
	switch host, port, _ := net.SplitHostPort(at); {
	case at == "":
	case c.Store != StoreRedis:
		l.fault(l.place(name), "needs --store redis")
	case host == "" || net.ParseIP(host).IsUnspecified() || port == "0":
		l.fault(l.place(name), "%q does not say where other servers find this one; use its name or IP address, and the "+
			"port of --grpc-address", at)
	}
	if at != "" && c.TLSClientAuth == ClientAuthRequired {
		own, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile) // Other checks report an error.
		if err == nil && !canBeClient(&own) {
			l.fault(l.place("tls-cert-file"), "has a certificate that is not for clients, and servers call one another with "+
				"theirs: add client authentication to its extended key usage, or use --tls-client-auth optional")
		}
	}
	switch {
	case c.Peers.CAFile == "":
	case at == "":
		l.fault(l.place("peer-ca-file"), "needs --advertise-address")
	case c.TLSCertFile == "":
		l.fault(l.place("peer-ca-file"), "needs --tls-cert-file; all servers have TLS, or none")
	default:
		if _, err := c.Peers.roots(); err != nil {
			l.fault(l.place("peer-ca-file"), "%v", err)
		}
	}
}

// roots returns the authorities of CAFile, nil if it is empty.
func (p *Peers) roots() (*x509.CertPool, error) {
	if p.CAFile == "" {
		return nil, nil //nolint:nilnil // the authorities of the system
	}
	data, err := secretfile.Read(p.CAFile, secretfile.MaxPEMBytes)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%q contains no certificate in PEM form", p.CAFile)
	}
	return pool, nil
}

// TLSToPeers returns how this server calls other servers: as they call it. own returns its certificate, which it
// presents if they request one and it may be that of a client. The result is nil if the servers have no TLS.
func (c *Config) TLSToPeers(own func() *tls.Certificate) (*tls.Config, error) {
	if c.TLSCertFile == "" {
		return nil, nil //nolint:nilnil // no TLS
	}
	roots, err := c.Peers.roots()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots,
		GetClientCertificate: func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own := own(); canBeClient(own) && request.SupportsCertificate(own) == nil {
				return own, nil
			}
			return new(tls.Certificate), nil // None. One that is not for clients, or of another authority, would be refused.
		},
	}, nil
}

// canBeClient reports whether a certificate may be that of a client.
func canBeClient(c *tls.Certificate) bool {
	usages := c.Leaf.ExtKeyUsage
	return len(usages)+len(c.Leaf.UnknownExtKeyUsage) == 0 || slices.Contains(usages, x509.ExtKeyUsageClientAuth) ||
		slices.Contains(usages, x509.ExtKeyUsageAny)
}
