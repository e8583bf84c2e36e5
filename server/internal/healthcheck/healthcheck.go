// Package healthcheck asks a server on this machine whether it serves, as the probe of a container does. Start at
// [Check].
package healthcheck

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// socketPrefix is the prefix of an address that is the path of a Unix socket.
const socketPrefix = "unix:"

// Server says how to reach a server.
type Server struct {
	// Address is that of the gRPC listener in the settings of the server: host:port or unix:PATH.
	Address string
	// TLS is set if the listener has TLS. A Unix socket has none in any case.
	TLS bool
	// CertFile and KeyFile are the certificate that is presented if the server requests one. If empty, there is none.
	CertFile, KeyFile string
}

// Check returns an error unless the server reports that it serves. It sends no credential but the certificate.
//
// It does not verify the server's certificate: the connection goes to the address in the settings of this machine,
// the certificate need not contain that address, and the only content is the state of the server.
func Check(ctx context.Context, s Server) error {
	var unreachable error // of the last attempt; written before the call returns
	conn, err := grpc.NewClient("passthrough:parleyd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (conn net.Conn, err error) {
			conn, unreachable = s.dial(ctx)
			return conn, unreachable
		}))
	if err != nil {
		return err
	}
	reply, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	err = errors.Join(err, conn.Close()) // Close waits for the dialer.
	switch {
	case err == nil && reply.GetStatus() == healthv1.HealthCheckResponse_SERVING:
		return nil
	case err == nil:
		return errors.New("not serving")
	case unreachable != nil && ctx.Err() == nil:
		return unreachable
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errors.New("no answer in time")
	}
	return err
}

// dial connects to the server, with TLS if it has TLS.
func (s Server) dial(ctx context.Context) (net.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil || !s.TLS || strings.HasPrefix(s.Address, socketPrefix) {
		return conn, err
	}
	host, _, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	secured := tls.Client(conn, &tls.Config{
		ServerName: host, NextProtos: []string{"h2"},
		InsecureSkipVerify:   true, //nolint:gosec // See Check.
		GetClientCertificate: s.clientCertificate,
	})
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS handshake: %w", err), conn.Close())
	}
	return secured, nil
}

// connect connects to the address. If the server listens on all addresses of the machine, that is a loopback address.
func (s Server) connect(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	if path, ok := strings.CutPrefix(s.Address, socketPrefix); ok {
		return dialer.DialContext(ctx, "unix", path)
	}
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, err
	}
	ip, err := netip.ParseAddr(host)
	if host != "" && (err != nil || !ip.IsUnspecified()) {
		return dialer.DialContext(ctx, "tcp", s.Address)
	}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err == nil {
		return conn, nil
	}
	conn, err6 := dialer.DialContext(ctx, "tcp", net.JoinHostPort("::1", port))
	if err6 != nil {
		return nil, err // A machine without IPv6 has a useless second error.
	}
	return conn, nil
}

// clientCertificate returns the certificate for a server that requests one.
func (s Server) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if s.CertFile == "" {
		return &tls.Certificate{}, nil
	}
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	return &pair, err
}
