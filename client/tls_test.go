package client_test

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// newSignIn creates the files of a new authority in dir, with a client certificate for name.
func newSignIn(t *testing.T, dir, name string) *parleydtest.SignIn {
	t.Helper()
	s, err := parleydtest.NewSignIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteClient(s.ClientCertFile, s.ClientKeyFile, name, parleydtest.ClientURI); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTLSFromFiles replaces the certificates of both sides while a client is in use. Each new connection has the new
// ones; a faulty file does not matter until then, and not after a valid one.
func TestTLSFromFiles(t *testing.T) {
	dir := t.TempDir()
	files := newSignIn(t, dir, "first")
	transport, err := client.TLSFromFiles(files.CAFile, files.ClientCertFile, files.ClientKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	names := make(chan string, 1)
	stop, address := serveTLS(t, files, "127.0.0.1:0", names)
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
	files = newSignIn(t, dir, "second")
	stop()
	stop, _ = serveTLS(t, files, address, names)
	call("second")

	// The file of the authority is damaged. The last valid files apply.
	write(t, files.CAFile, "")
	stop()
	stop, _ = serveTLS(t, files, address, names)
	call("second")
}

// serveTLS serves at address with a certificate of files, until stop is called. It requires client certificates and
// sends their names to names.
func serveTLS(
	t *testing.T, files *parleydtest.SignIn, address string, names chan<- string,
) (stop func(), listening string) {
	t.Helper()
	config, err := files.ClientTLS(false)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: config.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
	})))
	parleyv1.RegisterConversationServiceServer(server, &namingServer{names: names})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return func() { server.Stop(); serving.Wait() }, listener.Addr().String()
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
	files := newSignIn(t, dir, "client")
	ca, cert, key := files.CAFile, files.ClientCertFile, files.ClientKeyFile
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
