package e2e

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	encodingpem "encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// TestStartOnNetworkIsRefused checks that parleyd does not serve on a network without TLS and sign-in. The error is
// one line that names the flags to set.
func TestStartOnNetworkIsRefused(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	files.createToken(t, "--tenant=acme", "--role=writer")
	tokens, pair := "--auth-token-file="+files.TokenFile, files.ServerFlags()[:2]
	for _, test := range []struct {
		flags []string
		want  []string // in the line
	}{
		{nil, []string{"without TLS and sign-in", "--tls-cert-file", "--auth-token-file", "--insecure"}},
		{[]string{tokens}, []string{"without TLS;", "--tls-cert-file", "--insecure"}},
		{pair, []string{"without sign-in;", "--auth-token-file", "--insecure"}},
	} {
		output, err := parleyd(t, append(test.flags, "--grpc-address=0.0.0.0:0", "--store=memory")...).CombinedOutput()
		exit, _ := errors.AsType[*exec.ExitError](err)
		if exit == nil || exit.ExitCode() != exitUsage {
			t.Errorf("parleyd %q ended with %v, want code %d", test.flags, err, exitUsage)
		}
		if strings.Count(string(output), "\n") != 1 {
			t.Errorf("parleyd %q printed\n%swant one line", test.flags, output)
		}
		for _, part := range test.want {
			if !strings.Contains(string(output), part) {
				t.Errorf("parleyd %q printed\n%swant %q in it", test.flags, output, part)
			}
		}
	}
}

// TestInsecureStartWarns checks that a server on a network with --insecure logs what is missing.
func TestInsecureStartWarns(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--grpc-address=0.0.0.0:0", "--insecure", "--store=memory")
	s.await(t, "can be reached from other machines without TLS and sign-in", "level=WARN")
	s.await(t, "serving grpc", "tls=false", "sign_in=off")
}

// signInFiles are the files of a server with TLS and sign-in.
type signInFiles struct{ *parleydtest.SignIn }

func newSignIn(t *testing.T) signInFiles {
	t.Helper()
	files, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return signInFiles{files}
}

// createToken returns a new token.
func (f signInFiles) createToken(t *testing.T, flags ...string) string {
	t.Helper()
	token, err := f.CreateToken(parleyd(t), flags...)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// clientTLS returns the TLS settings of a client.
func (f signInFiles) clientTLS(t *testing.T, withCertificate bool) *tls.Config {
	t.Helper()
	config, err := f.ClientTLS(withCertificate)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// secureServer is a server on all addresses, with TLS and sign-in.
type secureServer struct {
	*httpServer
	files   signInFiles
	target  string // of gRPC
	baseURL string
}

func startSecure(t *testing.T, files signInFiles, flags ...string) *secureServer {
	t.Helper()
	s := startUnconnected(t, parleyd(t, append(append(files.ServerFlags(), "--store=memory",
		"--grpc-address=0.0.0.0:0", "--http-address=0.0.0.0:0"), flags...)...))
	port := func(message string) string {
		address := fmt.Sprint(s.await(t, message, "tls=true")["address"])
		return address[strings.LastIndex(address, ":"):]
	}
	target, url := "127.0.0.1"+port("serving grpc"), "https://localhost"+port("serving http")
	return &secureServer{&httpServer{s, url}, files, target, url}
}

// grpcClient returns a client without a token.
func (s *secureServer) grpcClient(t *testing.T, withCertificate bool) parleyv1.ConversationServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.target,
		grpc.WithTransportCredentials(credentials.NewTLS(s.files.clientTLS(t, withCertificate))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return parleyv1.NewConversationServiceClient(conn)
}

// get sends a request over HTTP.
func (s *secureServer) get(t *testing.T, path string, withCertificate bool, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.baseURL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	transport := &http.Transport{TLSClientConfig: s.files.clientTLS(t, withCertificate), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

// bearer returns a header or metadata with a token.
func bearer(token string, more ...string) http.Header {
	h := http.Header{"Authorization": {"Bearer " + token}}
	for i := 0; i < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

// TestSignInOverGRPC checks that only a valid token signs in, and that all faulty ones get the same error.
func TestSignInOverGRPC(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	writer := files.createToken(t, "--tenant=acme", "--role=writer")
	reader := files.createToken(t, "--tenant=acme", "--role=reader")
	s := startSecure(t, files)
	s.await(t, "serving grpc", "sign_in=tokens")
	client := s.grpcClient(t, false)
	load := func(pairs ...string) error {
		_, err := client.LoadConversation(metadata.AppendToOutgoingContext(t.Context(), pairs...),
			&parleyv1.LoadConversationRequest{ConversationId: "c"})
		return err
	}
	if err := load("authorization", "Bearer "+writer); err != nil {
		t.Errorf("LoadConversation with a token = %v, want nil", err)
	}
	wantError(t, load("authorization", "Bearer "+reader, "parley-tenant", "globex"), codes.PermissionDenied,
		"PERMISSION_DENIED")
	texts := map[string]bool{}
	for _, pairs := range [][]string{
		nil,
		{"authorization", writer},
		{"authorization", "Basic " + writer},
		{"authorization", "Bearer " + writer[1:]},
		{"authorization", "Bearer " + writer, "authorization", "Bearer " + writer},
	} {
		err := load(pairs...)
		wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
		texts[err.Error()] = true
	}
	if len(texts) != 1 {
		t.Errorf("errors of faulty credentials = %v, want one text", texts)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+reader)
	_, err := client.CreateConversation(ctx, &parleyv1.CreateConversationRequest{})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	if strings.Contains(s.log.Text(), writer) || strings.Contains(s.log.Text(), reader) {
		t.Error("the log contains a token")
	}
}

// TestSignInOverHTTP checks the statuses, the tenant header, and what needs no credential.
func TestSignInOverHTTP(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	token := files.createToken(t, "--tenant=acme", "--tenant=globex", "--role=reader")
	s := startSecure(t, files)
	forged := http.Header{ // The certificate of the tests is not even trusted here.
		"Parley-Client-Certificate-Bin":               {"MAA"},
		"Grpc-Metadata-Parley-Client-Certificate-Bin": {"MAA"},
		"Grpc-Metadata-Authorization":                 {"Bearer " + token},
	}
	for _, test := range []struct {
		name, path string
		header     http.Header
		code       int
	}{
		{"no credential", "/v1/conversations", nil, 401},
		{"wrong token", "/v1/conversations", bearer(token + "x"), 401},
		{"forged metadata", "/v1/conversations", forged, 401},
		{"token in the URL", "/v1/conversations?access_token=" + token, nil, 401},
		{"no tenant", "/v1/conversations", bearer(token), 400},
		{"other tenant", "/v1/conversations", bearer(token, "Parley-Tenant", "initech"), 403},
		{"one of the tenants", "/v1/conversations", bearer(token, "Parley-Tenant", "globex"), 200},
		{"too small a role", "/v1/backup", bearer(token, "Parley-Tenant", "globex"), 403},
		{"liveness", "/healthz", nil, 200},
		{"readiness", "/readyz", nil, 200},
		{"document", "/openapi.json", nil, 200},
	} {
		response, text := s.get(t, test.path, false, test.header)
		if response.StatusCode != test.code {
			t.Errorf("%s: GET %s = %d, want %d: %s", test.name, test.path, response.StatusCode, test.code, text)
		}
		if challenge := response.Header.Get("Www-Authenticate"); (challenge != "") != (test.code == 401) {
			t.Errorf("%s: WWW-Authenticate = %q with status %d", test.name, challenge, test.code)
		}
		if response.ProtoMajor != 2 {
			t.Errorf("%s: protocol = %s, want HTTP/2", test.name, response.Proto)
		}
	}
}

// TestSignInByCertificate checks that a client certificate signs in over each transport, and that clients without one
// are refused if it is required.
func TestSignInByCertificate(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	rules := agents(t, fmt.Sprintf("client_certificates: [{uri: %q, tenants: [acme], role: reader}]", parleydtest.ClientURI))
	s := startSecure(t, files, rules, "--tls-client-ca-file="+files.CAFile)
	s.await(t, "serving http", "sign_in=client certificates")
	list := &parleyv1.ListConversationsRequest{}
	if _, err := s.grpcClient(t, true).ListConversations(t.Context(), list); err != nil {
		t.Errorf("ListConversations with a certificate = %v, want nil", err)
	}
	_, err := s.grpcClient(t, false).ListConversations(t.Context(), list)
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	// A caller over a network cannot pass a certificate in the metadata.
	pem, err := os.ReadFile(files.ClientCertFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := encodingpem.Decode(pem)
	forged := metadata.AppendToOutgoingContext(t.Context(), "parley-client-certificate-bin", string(block.Bytes))
	_, err = s.grpcClient(t, false).ListConversations(forged, list)
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	encoded := base64.StdEncoding.EncodeToString(block.Bytes)
	for _, test := range []struct {
		name            string
		withCertificate bool
		header          http.Header
		path            string
		code            int
	}{
		{"certificate", true, nil, "/v1/conversations", 200},
		{"certificate and other tenant", true, http.Header{"Parley-Tenant": {"globex"}}, "/v1/conversations", 403},
		{"certificate for a stream", true, nil, "/v1/export", 200},
		{"certificate, too small a role", true, nil, "/v1/stats", 403},
		{"certificate for MCP", true, nil, "/mcp", 405}, // It accepts only POST.
		{"no certificate for MCP", false, nil, "/mcp", 401},
		{"no certificate", false, nil, "/v1/conversations", 401},
		{"forged certificate", false, http.Header{
			"Parley-Client-Certificate-Bin":               {encoded},
			"Grpc-Metadata-Parley-Client-Certificate-Bin": {encoded},
		}, "/v1/conversations", 401},
		{"forged certificate for a stream", false, http.Header{
			"Grpc-Metadata-Parley-Client-Certificate-Bin": {encoded},
		}, "/v1/export", 401},
	} {
		if response, text := s.get(t, test.path, test.withCertificate, test.header); response.StatusCode != test.code {
			t.Errorf("%s: GET %s = %d, want %d: %s", test.name, test.path, response.StatusCode, test.code, text)
		}
	}

	strict := startSecure(t, files, rules, "--tls-client-ca-file="+files.CAFile, "--tls-client-auth=required")
	if _, err := strict.grpcClient(t, true).ListConversations(t.Context(), list); err != nil {
		t.Errorf("ListConversations with a required certificate = %v, want nil", err)
	}
	if _, err := strict.grpcClient(t, false).ListConversations(t.Context(), list); status.Code(err) != codes.Unavailable {
		t.Errorf("ListConversations without a required certificate = %v, want Unavailable", err)
	}
}

// TestSignInByCurl signs in as the page server/http.md describes.
func TestSignInByCurl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("SKIPPED: this test needs curl, which is not installed")
	}
	files := newSignIn(t)
	token := files.createToken(t, "--tenant=acme", "--role=writer")
	s := startSecure(t, files)
	output, err := exec.CommandContext(t.Context(), "curl", "-sS", "--fail-with-body", "--cacert", files.CAFile,
		"-H", "Authorization: Bearer "+token, s.baseURL+"/v1/chat", "-d", `{"content": "by curl"}`).CombinedOutput()
	if err != nil || !strings.Contains(string(output), "by curl") {
		t.Errorf("curl = %v, printed %s", err, output)
	}
}

// TestSignInToMCP calls a tool with the client of the SDK. The response to a client without a token names the
// address of the metadata.
func TestSignInToMCP(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	writer := files.createToken(t, "--tenant=acme", "--role=writer")
	reader := files.createToken(t, "--tenant=acme", "--role=reader")
	s := startSecure(t, files)

	response, _ := s.get(t, "/mcp", false, nil)
	metadataURL := s.baseURL + "/.well-known/oauth-protected-resource/mcp"
	want := fmt.Sprintf("Bearer resource_metadata=%q", metadataURL)
	if got := response.Header.Get("Www-Authenticate"); response.StatusCode != http.StatusUnauthorized || got != want {
		t.Errorf("GET /mcp without a token = %s, WWW-Authenticate: %s; want 401, %s", response.Status, got, want)
	}
	_, text := s.get(t, strings.TrimPrefix(metadataURL, s.baseURL), false, nil)
	var about struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
	}
	if err := json.Unmarshal([]byte(text), &about); err != nil || about.Resource != s.baseURL+"/mcp" || about.Servers != nil {
		t.Errorf("metadata = %s, want the resource %s/mcp and no authorization server", text, s.baseURL)
	}

	ask := func(token string) error {
		client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
		session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{
			Endpoint: s.baseURL + "/mcp", HTTPClient: s.httpClient(t, token),
		}, nil)
		if err != nil {
			return err
		}
		defer session.Close()
		_, err = session.CallTool(t.Context(), &sdk.CallToolParams{
			Name: "ask_question", Arguments: map[string]any{"question": "hello"},
		})
		return err
	}
	if err := ask(writer); err != nil {
		t.Errorf("ask_question of a writer = %v, want nil", err)
	}
	if err := ask(reader); err == nil || !strings.Contains(err.Error(), "needs the role writer") {
		t.Errorf("ask_question of a reader = %v, want an error that names the role writer", err)
	}
	if err := ask("wrong"); err == nil {
		t.Error("ask_question with a wrong token succeeded, want an error")
	}
}

// httpClient returns a client that sends a token with every request.
func (s *secureServer) httpClient(t *testing.T, token string) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: s.files.clientTLS(t, false), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: tokenTransport{transport, token}}
}

// tokenTransport adds a token to requests.
type tokenTransport struct {
	http.RoundTripper
	token string
}

// RoundTrip sends a request.
func (w tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.RoundTripper.RoundTrip(r)
}
