package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/credentials"
)

// TLSFromFiles returns credentials for [grpc.WithTransportCredentials] that use TLS 1.2 or later with
// PEM files. caFile contains the certificates of the authorities that may have signed the server's
// certificate; if empty, those of the system apply. certFile and keyFile contain the client's
// certificate, with its chain, and its private key; both are empty if the client has none.
//
// The files are read again for each new connection, so that replaced certificates apply without a
// restart. If that fails, the previous certificates apply. TLSFromFiles returns an error if the
// first read fails.
func TLSFromFiles(caFile, certFile, keyFile string) (credentials.TransportCredentials, error) {
	if (certFile == "") != (keyFile == "") {
		return nil, errors.New("client certificate: name both the file of the certificate and the file of its key")
	}
	f := &fileTLS{ca: caFile, cert: certFile, key: keyFile}
	config, err := f.read()
	if err != nil {
		return nil, err
	}
	f.last = config
	return f, nil
}

// fileTLS is TLS with certificates from files.
type fileTLS struct {
	ca, cert, key string

	mu   sync.Mutex
	last *tls.Config // The certificates of the last successful read.
}

// read returns the configuration with the present content of the files.
func (f *fileTLS) read() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("CA certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("CA certificates: file %q contains no certificate in PEM form", f.ca)
		}
	}
	if f.cert != "" {
		certificate, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("client certificate in %q with key in %q: %w", f.cert, f.key, err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

// current returns credentials with the present content of the files, or with the last valid one.
func (f *fileTLS) current() credentials.TransportCredentials {
	f.mu.Lock()
	defer f.mu.Unlock()
	if config, err := f.read(); err == nil {
		f.last = config
	}
	return credentials.NewTLS(f.last)
}

// ClientHandshake starts TLS on a new connection.
func (f *fileTLS) ClientHandshake(
	ctx context.Context, authority string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return f.current().ClientHandshake(ctx, authority, conn)
}

// ServerHandshake returns an error.
func (*fileTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("the credentials are only for clients")
}

// Info describes TLS.
func (f *fileTLS) Info() credentials.ProtocolInfo { return f.current().Info() }

// Clone returns f itself, which does not change.
func (f *fileTLS) Clone() credentials.TransportCredentials { return f }

// OverrideServerName returns an error. Use grpc.WithAuthority.
func (*fileTLS) OverrideServerName(string) error {
	return errors.New("not supported; use grpc.WithAuthority")
}
