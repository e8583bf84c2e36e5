package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// erase erases at a server.
func erase(t *testing.T, address string) (int64, error) {
	t.Helper()
	turns, to := &Turns{log: slog.New(slog.DiscardHandler)}, store.Server{Address: address, Key: "key"}
	conn, err := turns.conns.dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := turns.whileAnswering(t.Context(), to, conn)
	defer cancel()
	reply, err := parleyv1.NewInteractionLogServiceClient(conn).DeleteInteractions(
		ctx, &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
	if err != nil {
		return 0, turns.failure(ctx, to, err)
	}
	return reply.GetDeletedCount(), nil
}

// slowLog answers an erasure after some health checks, of which the last one is 2 s after the call.
type slowLog struct {
	parleyv1.UnimplementedInteractionLogServiceServer
	healthv1.UnimplementedHealthServer

	checks chan struct{} // if nil, no check is answered
}

// DeleteInteractions waits for the health checks.
func (s *slowLog) DeleteInteractions(
	ctx context.Context, _ *parleyv1.DeleteInteractionsRequest,
) (*parleyv1.DeleteInteractionsResponse, error) {
	for range 4 {
		select {
		case <-s.checks:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &parleyv1.DeleteInteractionsResponse{DeletedCount: 7}, nil
}

// Check counts health checks.
func (s *slowLog) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	select {
	case s.checks <- struct{}{}:
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve starts a server until the end of the test. It returns its address.
func (s *slowLog) serve(t *testing.T) string {
	t.Helper()
	l, g := listen(t), grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterInteractionLogServiceServer(g, s)
	healthv1.RegisterHealthServer(g, s)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		g.Stop()
		serving.Wait()
	})
	return l.Addr().String()
}

// TestSlowServer: a call of the interaction log waits as long as the server answers health checks.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	s := &slowLog{checks: make(chan struct{}, 100)}
	if n, err := erase(t, s.serve(t)); n != 7 || err != nil {
		t.Errorf("DeleteInteractions of a slow server = %d, %v, want 7", n, err)
	}
}

// TestSilentServer: a call of the interaction log ends when the server answers no health check, accepts no connection,
// or does not listen.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	silent := listen(t) // The system accepts connections, and no program reads from them.
	defer func() { _ = silent.Close() }()
	closed := listen(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{new(slowLog).serve(t), silent.Addr().String(), closed.Addr().String()} {
		if _, err := erase(t, address); !errors.Is(err, ErrUnreachable) {
			t.Errorf("DeleteInteractions of a server that does not answer = %v, want %v", err, ErrUnreachable)
		}
	}
}
