package faulttest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// holdingAgent is the name of an agent that says nothing until the test lets it, and then
// much.
const holdingAgent = "holder"

type holder struct {
	parleyv1.UnimplementedAgentServiceServer
	release chan struct{} // closed by the test
	answer  string
}

func (h *holder) Respond(_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	select {
	case <-h.release:
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: h.answer}})
}

// withHolder serves the agent until the end of the test, and returns the flag that makes a
// server know it.
func withHolder(t *testing.T) (h *holder, flag string) {
	t.Helper()
	const words = 20_000
	h = &holder{release: make(chan struct{}), answer: strings.Repeat("answer ", words)}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(g, h)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(listener) })
	t.Cleanup(func() {
		g.Stop()
		serving.Wait()
	})
	path := filepath.Join(t.TempDir(), "parley.yaml")
	text := fmt.Sprintf("default_agent: echo\nagents: {%s: {kind: remote, address: %q}}\n", holdingAgent, listener.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return h, "--config=" + path
}
