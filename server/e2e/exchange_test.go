package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/parleydtest"
)

// exchanges is how often TestExchangeUnderLoad exchanges files.
const exchanges = 10

// TestExchangeUnderLoad exchanges certificates, tokens and limits while callers append, on connections that stay open
// and on new ones. No call fails. A new token is valid after the exchange, a revoked one is not, and new connections
// see the new certificate.
func TestExchangeUnderLoad(t *testing.T) {
	t.Parallel()
	skipShort(t)
	files, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const noLimits = "log_level: info\n"
	settings := agents(t, noLimits)
	path := strings.TrimPrefix(settings, "--config=")
	kept, revoked := createToken(t, files), createToken(t, files)
	s := startUnconnected(t, parleyd(t, append(files.ServerFlags(), settings, "--data-dir="+t.TempDir())...))
	target := fmt.Sprint(s.await(t, "serving grpc")["address"])
	x := &exchangeLoad{target: target, files: files, called: make(chan struct{}, 64)}

	watching, err := x.dial(t).WatchConversations(withToken(timeLimited(t), revoked), &parleyv1.WatchConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watching.Recv(); err != nil {
		t.Fatal(err)
	}
	firstSerial := x.serial(t, kept)
	stop := x.startCallers(t, kept)
	var created string
	for i := range exchanges {
		created = createToken(t, files)
		if i == exchanges/2 {
			revokeToken(t, files, 1)
		}
		if err := files.WriteServer(files.CertFile, files.KeyFile); err != nil {
			t.Fatal(err)
		}
		limits := fmt.Sprintf("tenants: {acme: {max_turns: %d, max_conversations: %d}}\n", 9+i, 900+i)
		if err := os.WriteFile(path, []byte(limits), 0o600); err != nil {
			t.Fatal(err)
		}
		hangUp(t, s, i+1)
		x.awaitCalls(t, 20)
	}
	stop()
	if serial := x.serial(t, created); serial == firstSerial {
		t.Error("a new connection has the first certificate, want the last one")
	}
	_, err = x.dial(t).ListConversations(withToken(t.Context(), revoked), &parleyv1.ListConversationsRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("call with a revoked token = %v, want UNAUTHENTICATED", err)
	}
	for err = nil; err == nil; {
		_, err = watching.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("stream of a revoked token ended with %v, want UNAUTHENTICATED", err)
	}
}

// exchangeLoad is a server whose files a test exchanges, and its callers.
type exchangeLoad struct {
	target string
	files  *parleydtest.SignIn
	called chan struct{} // has a value for each call that was successful
}

// dial returns a client with a connection of its own.
func (x *exchangeLoad) dial(t *testing.T) parleyv1.ConversationServiceClient {
	t.Helper()
	conn := x.connect(t)
	t.Cleanup(func() { conn.Close() })
	return parleyv1.NewConversationServiceClient(conn)
}

func (x *exchangeLoad) connect(t *testing.T) *grpc.ClientConn {
	t.Helper()
	tls, err := x.files.ClientTLS(false)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(x.target, grpc.WithTransportCredentials(credentials.NewTLS(tls)))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// serial returns the serial number of the certificate that a new connection receives.
func (x *exchangeLoad) serial(t *testing.T, token string) string {
	t.Helper()
	var from peer.Peer
	_, err := x.dial(t).ListAgents(withToken(t.Context(), token), &parleyv1.ListAgentsRequest{}, grpc.Peer(&from))
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if err != nil || !ok {
		t.Fatalf("ListAgents = %v, peer %v; want TLS", err, from.AuthInfo)
	}
	return info.State.PeerCertificates[0].SerialNumber.String()
}

// startCallers starts callers that append until stop is called: some with one connection, one with a new connection
// for each call. The test fails if a call fails.
func (x *exchangeLoad) startCallers(t *testing.T, token string) (stop func()) {
	t.Helper()
	var callers sync.WaitGroup
	ctx, cancel := context.WithCancel(withToken(t.Context(), token))
	appendTo := func(c parleyv1.ConversationServiceClient, id string) {
		_, err := c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_USER, Content: "hello"},
		}})
		if err != nil && ctx.Err() == nil {
			t.Errorf("AppendMessages during an exchange = %v", err)
		}
		select {
		case x.called <- struct{}{}:
		default: // The test is not waiting.
		}
	}
	for i := range 3 {
		c := x.dial(t)
		callers.Go(func() {
			for ctx.Err() == nil {
				appendTo(c, fmt.Sprint("kept-", i))
			}
		})
	}
	callers.Go(func() {
		for ctx.Err() == nil {
			conn := x.connect(t)
			appendTo(parleyv1.NewConversationServiceClient(conn), "new")
			conn.Close()
		}
	})
	return func() { cancel(); callers.Wait() }
}

// awaitCalls waits for the next n calls.
func (x *exchangeLoad) awaitCalls(t *testing.T, n int) {
	t.Helper()
	for len(x.called) > 0 {
		<-x.called
	}
	late := time.After(timeout)
	for range n {
		select {
		case <-x.called:
		case <-late:
			t.Fatalf("fewer than %d calls in %v", n, timeout)
		}
	}
}

// hangUp sends SIGHUP and waits until the server has reloaded its settings n times.
func hangUp(t *testing.T, s *server, n int) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	late := time.After(timeout)
	for {
		found, more := s.log.Find("settings reloaded")
		if len(found) >= n {
			return
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("%d reloads, want %d", len(found), n)
		}
	}
}

// createToken creates a token of a writer of the tenant acme.
func createToken(t *testing.T, files *parleydtest.SignIn) string {
	t.Helper()
	token, err := files.CreateToken(parleyd(t), "--tenant=acme", "--role=writer")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// revokeToken revokes the token that was created as the n-th one, counted from 0.
func revokeToken(t *testing.T, files *parleydtest.SignIn, n int) {
	t.Helper()
	tokens, err := tokenfile.List(files.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	command := parleyd(t)
	command.Args = append(command.Args[:1], "token", "revoke", "--file="+files.TokenFile, tokens[n].ID)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("token revoke: %v: %s", err, out)
	}
}

// withToken returns a context for calls with a token.
func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}
