package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/parleyhq/parley/server/internal/secretfile"
)

// checkFilesInterval is the time between two checks whether the files of the certificates have changed.
const checkFilesInterval = 2 * time.Second

// TLSFiles are the files with the certificates of the listeners, in PEM form.
type TLSFiles struct {
	CertFile, KeyFile string
	// ClientCAFile contains the certificates of the authorities that issue client certificates. If empty, the server
	// requests no client certificates.
	ClientCAFile string
	// RequireClientCert refuses clients without a certificate.
	RequireClientCert bool
}

// certificates are the TLS settings of the listeners. They follow the content of the files: new connections use
// the new certificates, and connections of clients whose authority is not in the file any more are closed.
type certificates struct {
	files TLSFiles
	log   *slog.Logger

	current atomic.Pointer[loadedFiles]

	reads     atomic.Uint64 // number of reads of the files so far
	reloading sync.Mutex    // held while fault, current or applied changes
	applied   uint64        // the number of the read that is in current
	fault     string        // the last fault of the files that was logged

	mu sync.Mutex
	// clients contains each connection whose client presented certificates that were verified.
	clients map[net.Conn]trackedClient
}

// trackedClient is the client of a connection.
type trackedClient struct {
	raw       net.Conn // carries the TLS connection; closing it does not wait for the client
	presented []*x509.Certificate
}

// loadedFiles is the content of the files, and what is made of it.
type loadedFiles struct {
	content     [3][]byte
	leaf        *x509.Certificate
	authorities *x509.CertPool // nil: no client certificates
	config      *tls.Config    // without NextProtos
}

// openCertificates reads the files.
func openCertificates(files TLSFiles, log *slog.Logger) (*certificates, error) {
	c := &certificates{files: files, log: log, clients: make(map[net.Conn]trackedClient)}
	loaded, err := c.load()
	if err != nil {
		return nil, err
	}
	c.current.Store(loaded)
	return c, nil
}

// load reads and parses the files. It makes the checks of the settings at the start, too.
func (c *certificates) load() (*loadedFiles, error) {
	var l loadedFiles
	var err error
	if l.content[0], err = secretfile.Read(c.files.CertFile, secretfile.MaxPEMBytes); err != nil {
		return nil, fmt.Errorf("tls-cert-file: %w", err)
	}
	l.content[1], err = secretfile.ReadPrivate(c.files.KeyFile, secretfile.MaxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("tls-key-file: %w", err)
	}
	if c.files.ClientCAFile != "" {
		if l.content[2], err = secretfile.Read(c.files.ClientCAFile, secretfile.MaxPEMBytes); err != nil {
			return nil, fmt.Errorf("tls-client-ca-file: %w", err)
		}
	}
	pair, err := tls.X509KeyPair(l.content[0], l.content[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", c.files.CertFile, c.files.KeyFile, err)
	}
	l.leaf = pair.Leaf
	l.config = &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		// The suites for TLS 1.2 that HTTP/2 allows. TLS 1.3 has its own.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
	}
	if c.files.ClientCAFile == "" {
		return &l, nil
	}
	l.authorities = x509.NewCertPool()
	if !l.authorities.AppendCertsFromPEM(l.content[2]) {
		return nil, fmt.Errorf("%s contains no certificate in PEM form", c.files.ClientCAFile)
	}
	l.config.ClientCAs, l.config.ClientAuth = l.authorities, tls.VerifyClientCertIfGiven
	if c.files.RequireClientCert {
		l.config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	// A resumed session would use the result of an earlier verification, with other authorities.
	l.config.SessionTicketsDisabled = true
	return &l, nil
}

// reload reads the files again. If they are faulty, the certificates do not change.
func (c *certificates) reload() error {
	apply, err := c.prepare()
	if err == nil {
		apply()
	}
	return err
}

// prepare reads the files again. The certificates change when apply is called, if the files have changed.
func (c *certificates) prepare() (apply func(), err error) {
	read := c.reads.Add(1)
	loaded, err := c.load()
	if err != nil {
		return nil, err
	}
	return func() {
		c.reloading.Lock()
		defer c.reloading.Unlock()
		if read < c.applied {
			return // The files have been read again in the meantime.
		}
		c.applied, c.fault = read, ""
		before := c.current.Load()
		if slices.EqualFunc(before.content[:], loaded.content[:], bytes.Equal) {
			return
		}
		c.current.Store(loaded)
		c.log.Info("certificates reloaded", "not_after", loaded.leaf.NotAfter.UTC().Format(time.RFC3339))
		c.closeUntrusted()
	}, nil
}

// watch reloads the files when they change, until stop is closed.
func (c *certificates) watch(stop <-chan struct{}) {
	ticker := time.NewTicker(checkFilesInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			c.check()
		}
	}
}

// check reloads the files if they have changed. It logs a fault once.
func (c *certificates) check() {
	err := c.reload()
	if err == nil {
		return
	}
	c.reloading.Lock()
	defer c.reloading.Unlock()
	if err.Error() != c.fault {
		c.fault = err.Error()
		c.log.Warn("certificates not reloaded, the previous ones stay in use", "error", err)
	}
}

// config returns the TLS settings of a listener with these protocols. Each connection uses the current certificates.
func (c *certificates) config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // No connection uses it, because GetConfigForClient replaces the settings.
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			config := c.current.Load().config.Clone()
			config.NextProtos = protocols
			return config, nil
		},
	}
}

// grpcCredentials returns the credentials of the gRPC server.
func (c *certificates) grpcCredentials() credentials.TransportCredentials {
	return &trackedCredentials{credentials.NewTLS(c.config("h2")), c}
}

// trackedCredentials tracks the connections of clients with a certificate.
type trackedCredentials struct {
	credentials.TransportCredentials

	certificates *certificates
}

// ServerHandshake makes the handshake of a connection.
func (t *trackedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if info, ok := info.(credentials.TLSInfo); ok && t.certificates.track(conn, raw, info.State) {
		conn = &trackedConn{conn, t.certificates}
	}
	return conn, info, nil
}

// Clone returns a copy.
func (t *trackedCredentials) Clone() credentials.TransportCredentials {
	return &trackedCredentials{t.TransportCredentials.Clone(), t.certificates}
}

// trackedConn is a connection of a client with a certificate.
type trackedConn struct {
	net.Conn

	certificates *certificates
}

// Close closes the connection.
func (t *trackedConn) Close() error {
	t.certificates.untrack(t.Conn)
	return t.Conn.Close()
}

// track tracks a connection if its client presented a certificate. raw is the connection below TLS. Such a connection
// is closed when the certificate is not trusted any more. The caller must call untrack when the connection is closed.
// Further calls for a connection do nothing.
func (c *certificates) track(conn, raw net.Conn, state tls.ConnectionState) bool {
	if len(state.VerifiedChains) == 0 {
		return false
	}
	c.mu.Lock()
	_, tracked := c.clients[conn]
	if !tracked {
		c.clients[conn] = trackedClient{raw, state.PeerCertificates}
	}
	c.mu.Unlock()
	// The authorities may have changed since the handshake, and closeUntrusted may have run before.
	if !tracked && !c.current.Load().trusts(state.PeerCertificates) {
		_ = raw.Close()
	}
	return true
}

func (c *certificates) untrack(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.clients, conn)
}

// closeUntrusted closes the connections of clients whose certificate is not trusted any more. It does not say so to
// the clients: one that does not read would delay the others.
func (c *certificates) closeUntrusted() {
	loaded := c.current.Load()
	c.mu.Lock()
	clients := slices.Collect(maps.Values(c.clients))
	c.mu.Unlock()
	for _, client := range clients {
		if !loaded.trusts(client.presented) {
			_ = client.raw.Close()
		}
	}
}

// trusts reports whether the certificates that a client presented lead to one of the authorities.
func (l *loadedFiles) trusts(presented []*x509.Certificate) bool {
	intermediates := x509.NewCertPool()
	for _, certificate := range presented[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := presented[0].Verify(x509.VerifyOptions{
		Roots: l.authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}
