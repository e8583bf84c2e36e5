package client_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// signedIn is a real server with TLS and tokens.
type signedIn struct {
	*parleydtest.SignIn
	*serverProcess

	tokens map[string]string // by name
}

// startSignedIn starts a server with the tokens that flags create, by name.
func startSignedIn(t *testing.T, tokens map[string][]string, args ...string) *signedIn {
	t.Helper()
	program, err := programs.build()
	if err != nil {
		t.Fatal(err)
	}
	s := &signedIn{tokens: map[string]string{}}
	if s.SignIn, err = parleydtest.NewSignIn(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for name, flags := range tokens {
		if s.tokens[name], err = s.CreateToken(parleydtest.Command(t.Context(), program, ""), flags...); err != nil {
			t.Fatal(err)
		}
	}
	if s.serverProcess, err = startProcess(append(s.ServerFlags(), args...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

// dial returns a client that trusts the authority of the server, without a client certificate.
func (s *signedIn) dial(t *testing.T, opts ...grpc.DialOption) *client.Client {
	t.Helper()
	transport, err := client.TLSFromFiles(s.CAFile, "", "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(s.address, append([]grpc.DialOption{grpc.WithTransportCredentials(transport)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestSignInAtARealServer checks the results of calls with and without valid credentials.
func TestSignInAtARealServer(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t, map[string][]string{
		"acme":   {"--tenant=acme", "--role=writer"},
		"reader": {"--tenant=acme", "--role=reader"},
		"both":   {"--tenant=acme", "--tenant=shop", "--role=writer"},
	})
	tests := []struct {
		name   string
		opts   []grpc.DialOption
		code   codes.Code
		reason string
	}{
		{"a token", []grpc.DialOption{fixed(s.tokens["acme"])}, codes.OK, ""},
		{"no token", nil, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"a wrong token", []grpc.DialOption{fixed("parley_" + strings.Repeat("x", 43))}, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"too small a role", []grpc.DialOption{fixed(s.tokens["reader"])}, codes.PermissionDenied, "PERMISSION_DENIED"},
		{"no tenant", []grpc.DialOption{fixed(s.tokens["both"])}, codes.InvalidArgument, "TENANT_REQUIRED"},
		{"a tenant", []grpc.DialOption{fixed(s.tokens["both"]), client.WithTenant("shop")}, codes.OK, ""},
		{
			"a foreign tenant",
			[]grpc.DialOption{fixed(s.tokens["acme"]), client.WithTenant("shop")},
			codes.PermissionDenied, "PERMISSION_DENIED",
		},
		{"metadata of another option", []grpc.DialOption{
			fixed(s.tokens["both"]), client.WithTenant("other"),
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				ctx = metadata.AppendToOutgoingContext(ctx, "parley-tenant", "acme")
				return invoke(ctx, method, request, reply, conn, opts...)
			}),
		}, codes.OK, ""},
	}
	for _, test := range tests {
		_, err := s.dial(t, test.opts...).AppendMessages(t.Context(), batch(1, "hello"))
		if status.Code(err) != test.code || client.Reason(err) != test.reason {
			t.Errorf("%s: AppendMessages = %v, want %v %q", test.name, err, test.code, test.reason)
		}
		for name, token := range s.tokens {
			if err != nil && strings.Contains(err.Error(), token) || strings.Contains(s.process.Log.Text(), token) {
				t.Errorf("%s: the error or the log of the server contains the token %s", test.name, name)
			}
		}
	}

	// The content of the token file is replaced.
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, s.tokens["reader"])
	c := s.dial(t, client.WithTokenFile(path))
	if _, err := c.AppendMessages(t.Context(), batch(1, "hello")); client.Reason(err) != "PERMISSION_DENIED" {
		t.Errorf("AppendMessages of a reader = %v, want PERMISSION_DENIED", err)
	}
	write(t, path+".new", s.tokens["acme"])
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AppendMessages(t.Context(), batch(1, "hello")); err != nil {
		t.Errorf("AppendMessages with the replaced token = %v, want no error", err)
	}
}

// TestCertificatesAtARealServer checks that the client presents its certificate to a server that requires one, and
// that it trusts no other authority.
func TestCertificatesAtARealServer(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t, map[string][]string{"acme": {"--tenant=acme", "--role=writer"}})
	s.kill()
	var err error
	s.serverProcess, err = startProcess(append(s.ServerFlags(),
		"--tls-client-ca-file="+s.CAFile, "--tls-client-auth=required")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	other, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name          string
		ca, cert, key string
		code          codes.Code
	}{
		{"certificate", s.CAFile, s.ClientCertFile, s.ClientKeyFile, codes.OK},
		{"no certificate", s.CAFile, "", "", codes.Unavailable},
		{"certificate of another authority", s.CAFile, other.ClientCertFile, other.ClientKeyFile, codes.Unavailable},
		{"another authority", other.CAFile, s.ClientCertFile, s.ClientKeyFile, codes.Unavailable},
		{"authorities of the system", "", s.ClientCertFile, s.ClientKeyFile, codes.Unavailable},
	}
	for _, test := range tests {
		transport, err := client.TLSFromFiles(test.ca, test.cert, test.key)
		if err != nil {
			t.Fatal(err)
		}
		c := s.dial(t, grpc.WithTransportCredentials(transport), fixed(s.tokens["acme"]))
		if _, err := c.AppendMessages(t.Context(), batch(1, "hello")); status.Code(err) != test.code {
			t.Errorf("%s: AppendMessages = %v, want %v", test.name, err, test.code)
		}
	}
}

// waitingAgent is an agent that waits after each text of its answer until answer has a value or is closed.
type waitingAgent struct {
	parleyv1.UnimplementedAgentServiceServer
	answer chan struct{}
}

func (a *waitingAgent) Respond(_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	for _, text := range []string{"before, ", "after"} {
		if err := stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}); err != nil {
			return err
		}
		select {
		case <-a.answer:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return nil
}

// TestStreamsOutliveTheirToken checks that a chat and a watch continue when their token has expired: the chat resumes
// after the server has ended its stream, 30 s later, and the watch opens its next stream before. The watched
// conversation is ephemeral and would be deleted if it had no stream for a moment.
func TestStreamsOutliveTheirToken(t *testing.T) {
	if testing.Short() {
		t.Skip("the server ends a stream 30 s after its token has expired")
	}
	t.Parallel()
	agent := &waitingAgent{answer: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agents := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(agents, agent)
	var serving sync.WaitGroup
	serving.Go(func() { _ = agents.Serve(listener) })
	t.Cleanup(func() { agents.Stop(); serving.Wait() })
	config := filepath.Join(t.TempDir(), "server.yaml")
	write(t, config, fmt.Sprintf("default_agent: slow\nagents:\n  slow: {kind: remote, address: %q}\n", listener.Addr()))
	s := startSignedIn(t, map[string][]string{
		"short": {"--tenant=acme", "--role=writer", "--expires=5s"},
		"long":  {"--tenant=acme", "--role=writer", "--expires=1h"},
	}, "--config", config)

	var running sync.WaitGroup
	running.Go(func() { watchBeyondToken(t, s) })
	running.Go(func() { chatBeyondToken(t, s, agent) })
	running.Wait()
}

// watchBeyondToken watches an ephemeral conversation until the watch has opened its next stream with another token.
func watchBeyondToken(t *testing.T, s *signedIn) {
	t.Helper()
	source, asked := sequence(s.tokens["short"], s.tokens["long"])
	c, other := s.dial(t, client.WithToken(source)), s.dial(t, fixed(s.tokens["long"]))
	request := &parleyv1.WatchConversationsRequest{ConversationIds: []string{"w"}, DeleteAfterDisconnect: durationpb.New(0)}
	created := false
	for change, err := range c.WatchConversations(t.Context(), request) {
		switch kind := change.GetKind(); {
		case err != nil:
			t.Error(err)
		case kind == parleyv1.ChangeKind_CHANGE_KIND_DELETED:
			t.Error("the conversation was deleted, want the watch to keep it")
			return
		case kind != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
		case !created:
			created = true
			conversation := &parleyv1.Conversation{Id: "w"}
			_, err := other.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: conversation})
			if err != nil {
				t.Error(err)
			}
		case *asked >= 3: // For the first stream, after it had expired, and for the second one.
			_, err := other.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "w"})
			if err != nil {
				t.Errorf("GetConversation after the watch was replaced = %v, want no error", err)
			}
			return
		}
	}
}

// chatBeyondToken reads an answer that the agent completes after the token has expired and the stream has ended.
func chatBeyondToken(t *testing.T, s *signedIn, agent *waitingAgent) {
	t.Helper()
	asked := 0
	c := s.dial(t, client.WithToken(func(context.Context) (string, error) {
		asked++
		if asked == 1 {
			return s.tokens["short"], nil
		}
		if asked == 2 {
			close(agent.answer) // The server has ended the stream.
		}
		return s.tokens["long"], nil
	}))
	var text strings.Builder
	var last *parleyv1.TurnEvent
	for event, err := range c.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "hello"}) {
		if err != nil {
			t.Error(err)
		}
		text.WriteString(event.GetTextDelta().GetText())
		last = event
	}
	state := last.GetFinished().GetTurn().GetState()
	if text.String() != "before, after" || state != parleyv1.TurnState_TURN_STATE_COMPLETED || asked != 3 {
		t.Errorf("text = %q, state %v, token asked for %d times; want all of the text, COMPLETED and two streams",
			text.String(), state, asked)
	}
}
