package hostile

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// maxIdleBytes is how much memory an idle stream may need.
const maxIdleBytes = 25_000

// TestIdleStreams opens 10,000 watches with TLS and tokens, over few connections and over many. It checks how much
// memory of the server each needs, and that a stop ends all.
func TestIdleStreams(t *testing.T) {
	t.Parallel()
	skipShort(t)
	built := filepath.Join(t.TempDir(), "parleyd") // The race detector would need more memory than the server.
	if err := parleydtest.Build(t.Context(), built); err != nil {
		t.Fatal(err)
	}
	for _, conns := range []int{10, 100} {
		t.Run(fmt.Sprint(conns, " connections"), func(t *testing.T) { testIdleStreams(t, built, conns) })
	}
}

func testIdleStreams(t *testing.T, program string, conns int) {
	t.Helper()
	const streams = 10_000
	signIn, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, err := signIn.CreateToken(parleydtest.Command(t.Context(), program, ""), "--tenant=default", "--role=admin")
	if err != nil {
		t.Fatal(err)
	}
	process, err := parleydtest.Start(parleydtest.Command(t.Context(), program, "",
		append(signIn.ServerFlags(), "--store=memory")...))
	if err != nil {
		t.Fatal(err)
	}
	defer process.Kill()
	s := &server{process: process}
	if s.grpcAddr, err = process.AwaitServing(); err != nil {
		t.Fatal(err)
	}
	config, err := signIn.ClientTLS(false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	clients := make([]parleyv1.ConversationServiceClient, conns)
	for i := range clients {
		conn, err := grpc.NewClient(s.grpcAddr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		clients[i] = parleyv1.NewConversationServiceClient(conn)
		// The conversation exists, and the server has compiled the rules that calls need.
		if _, err := clients[i].LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	before := s.status(t, "VmRSS")
	var opening, ended sync.WaitGroup
	results := make([]codes.Code, streams)
	for i := range streams {
		opening.Add(1)
		ended.Go(func() {
			opened := sync.OnceFunc(opening.Done)
			defer opened()
			watch, err := clients[i%conns].WatchConversations(ctx,
				&parleyv1.WatchConversationsRequest{ConversationIds: []string{"c"}})
			for err == nil {
				if _, err = watch.Recv(); err == nil {
					opened() // The first event is a heartbeat.
				}
			}
			results[i] = status.Code(err)
		})
	}
	opening.Wait()
	each := (s.status(t, "VmRSS") - before) / streams
	t.Logf("%d streams over %d connections: %d bytes each; before them %d MiB", streams, conns, each, before>>20)
	if each > maxIdleBytes {
		t.Errorf("an idle stream needs %d bytes, want at most %d", each, maxIdleBytes)
	}
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-process.Ended():
	case <-time.After(timeout):
		t.Fatal("the server did not stop with 10,000 idle streams")
	}
	ended.Wait()
	for i, code := range results {
		if code != codes.Unavailable {
			t.Fatalf("stream %d ended with %v, want %v", i, code, codes.Unavailable)
		}
	}
}
