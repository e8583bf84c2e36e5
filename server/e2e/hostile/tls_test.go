package hostile

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/parleyhq/parley/server/parleydtest"
)

// TestTLS attacks the handshakes of both listeners.
func TestTLS(t *testing.T) {
	t.Parallel()
	skipShort(t)
	// The start of a ClientHello of 512 bytes.
	const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
	open := func(address func(*server) string, text string) func(*testing.T, *server) string {
		return func(t *testing.T, s *server) string {
			t.Helper()
			return openMany(t, address(s), text)
		}
	}
	grpc := func(s *server) string { return s.grpcAddr }
	web := func(s *server) string { return s.http }
	for _, a := range []attack{
		{"slow handshake on gRPC", open(grpc, hello), "200 x closed"},
		{"slow handshake on HTTP", open(web, hello), "200 x closed"},
		{"no handshake on gRPC", open(grpc, ""), "200 x closed"},
		{"no handshake on HTTP", open(web, ""), "200 x closed"},
		{"garbage on gRPC", open(grpc, strings.Repeat("\x00\xff", 1000)), "200 x closed"},
		{"garbage on HTTP", open(web, strings.Repeat("\x00\xff", 1000)), "200 x closed"},
		{"invalid hello on gRPC", open(grpc, hello+strings.Repeat("x", 505)), "200 x closed"},
		{"invalid hello on HTTP", open(web, hello+strings.Repeat("x", 505)), "200 x closed"},
	} {
		t.Run(a.name, func(t *testing.T) { a.test(t, true) })
	}
}

// TestSlowAnonymousBodies sends as many large bodies without a credential as the server reads at once, and does not
// complete them. Each is refused before it is complete, and a caller that signs in can still send a large body.
func TestSlowAnonymousBodies(t *testing.T) {
	t.Parallel()
	skipShort(t)
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	signIn, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	create := parleydtest.Command(t.Context(), path, "")
	create.Env = append(create.Env, asServer+"=1", "GORACE=atexit_sleep_ms=0")
	token, err := signIn.CreateToken(create, "--tenant=acme", "--role=writer")
	if err != nil {
		t.Fatal(err)
	}
	config, err := signIn.ClientTLS(false)
	if err != nil {
		t.Fatal(err)
	}
	s := startProgram(t, path, credentials.NewTLS(config), signIn.ServerFlags()...)

	config.ServerName = "localhost"
	conns, results := make([]net.Conn, 64), make([]string, 64)
	for i := range conns {
		conns[i] = tls.Client(dial(t, s.http), config)
		_, _ = fmt.Fprintf(conns[i], "POST /v1/conversations:load HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Length: 1000000\r\n\r\n%300000s", "")
	}
	for i, conn := range conns {
		results[i] = responseCode(t, bufio.NewReader(conn), conn)
	}
	if got, want := tally(results), "64 x 401"; got != want {
		t.Errorf("statuses = %s, want %s", got, want)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.http+"/v1/conversations:load",
		strings.NewReader(strings.Repeat(" ", 300_000)+"{}"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("large body of a caller = %s, %s, %v; want 200", response.Status, text, err)
	}
}
