package faulttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// load is a group of clients that make steps on a server until it is killed.
type load struct {
	stop         context.CancelFunc
	acknowledged chan struct{} // one value per acknowledged step
	group        sync.WaitGroup
	errs         chan error // the last error of each client
}

// maxAcknowledged is how many acknowledgements of a load may be unread.
const maxAcknowledged = 1 << 16

// startLoad starts the clients.
func startLoad(t *testing.T, s *server, clients []*client) *load {
	t.Helper()
	return startLoadOf(t, clients, func(ctx context.Context, c *client, acknowledged func()) error {
		return c.run(ctx, s, acknowledged)
	})
}

// startLoadOf is startLoad for clients that do something other than run.
func startLoadOf(
	t *testing.T, clients []*client, do func(ctx context.Context, c *client, acknowledged func()) error,
) *load {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	l := &load{stop: stop, acknowledged: make(chan struct{}, maxAcknowledged), errs: make(chan error, len(clients))}
	acknowledged := func() {
		select {
		case l.acknowledged <- struct{}{}:
		case <-ctx.Done():
		}
	}
	for _, c := range clients {
		l.group.Go(func() { l.errs <- do(ctx, c, acknowledged) })
	}
	return l
}

// await waits for n acknowledgements and then for the time more. It returns an error if a client fails
// in that time.
func (l *load) await(n int, more time.Duration) error {
	for range n {
		select {
		case <-l.acknowledged:
		case err := <-l.errs:
			l.errs <- err // for end
			return fmt.Errorf("before the fault: %w", err)
		}
	}
	<-time.After(more)
	return nil
}

// end waits until all clients have failed because the server is killed. It returns the number of
// acknowledgements that were not awaited.
func (l *load) end() int {
	l.group.Wait()
	l.stop()
	return len(l.acknowledged)
}

// stallingAgent is the name of an agent that repeats some words of the message, and then nothing until
// its caller cancels.
const stallingAgent = "staller"

// stallWords is the number of words that the stalling agent repeats.
const stallWords = 2

type staller struct {
	parleyv1.UnimplementedAgentServiceServer
}

func (staller) Respond(r *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	messages := r.GetMessages()
	if len(messages) == 0 {
		return errors.New("request has no messages")
	}
	words := strings.SplitAfterN(messages[len(messages)-1].GetContent(), " ", stallWords+1)
	for _, word := range words[:min(stallWords, len(words))] {
		if err := stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: word}}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// withStaller serves the stalling agent; see withAgent.
func withStaller(t *testing.T) (flag string) {
	t.Helper()
	return withAgent(t, stallingAgent, staller{})
}

// withAgent serves an agent until the end of the test. It returns the flag that configures the agent
// under that name.
func withAgent(t *testing.T, name string, agent parleyv1.AgentServiceServer) (flag string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(g, agent)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(listener) })
	t.Cleanup(func() {
		g.Stop()
		serving.Wait()
	})
	path := filepath.Join(t.TempDir(), "parley.yaml")
	text := fmt.Sprintf("default_agent: echo\nagents: {%s: {kind: remote, address: %q}}\n", name, listener.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--config=" + path
}
