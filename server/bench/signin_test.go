package bench

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/transport"
	"github.com/parleyhq/parley/server/parleydtest"
)

// withSignIn serves the same store on another address, with TLS and tokens. The client of the result has a token.
func (s *benchServer) withSignIn(b *testing.B) *benchServer {
	b.Helper()
	files, err := parleydtest.NewSignIn(b.TempDir())
	must(b, err)
	token, _, err := tokenfile.Create(s.ctx, files.TokenFile, tokenfile.Token{
		Tenants: []string{auth.DefaultTenant}, Role: auth.Writer, Created: time.Now(),
	})
	must(b, err)
	tokens, err := tokenfile.Open(files.TokenFile, time.Now)
	must(b, err)
	authenticator := auth.New(time.Now, tokens)
	service := rpc.New(rpc.Options{
		Store: s.store, StoreName: s.config.Store, Turns: s.newTurns(), Hub: s.hub, Agents: s.agents, Log: s.log,
		Auth: authenticator,
	})
	servers, err := transport.Open(s.ctx, transport.Options{
		GRPCAddress: "127.0.0.1:0", KeepaliveTime: s.config.KeepaliveTime, Log: s.log, Auth: authenticator,
		TLS: &transport.TLSFiles{CertFile: files.CertFile, KeyFile: files.KeyFile},
	}, service)
	must(b, err)
	var serving errgroup.Group
	servers.Serve(&serving)
	b.Cleanup(func() {
		stopped, cancel := context.WithCancel(s.ctx)
		cancel()
		servers.Drain(stopped)
		must(b, serving.Wait())
	})

	tls, err := files.ClientTLS(false)
	must(b, err)
	conn, err := grpc.NewClient(servers.GRPCAddress().String(), grpc.WithTransportCredentials(credentials.NewTLS(tls)),
		grpc.WithPerRPCCredentials(bearer(token)))
	must(b, err)
	b.Cleanup(func() { conn.Close() })
	signedIn := *s
	signedIn.conn, signedIn.client = conn, parleyv1.NewConversationServiceClient(conn)
	return &signedIn
}

// bearer is a token that is sent with every call.
type bearer string

// GetRequestMetadata returns the metadata of a call.
func (t bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{auth.TokenKey: "Bearer " + string(t)}, nil
}

// RequireTransportSecurity returns true: the token is not sent without TLS.
func (t bearer) RequireTransportSecurity() bool { return true }
