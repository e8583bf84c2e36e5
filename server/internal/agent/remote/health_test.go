package remote

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func registerHealth(server *grpc.Server, h healthv1.HealthServer) {
	healthv1.RegisterHealthServer(server, h)
}

// TestNotServing has an agent that is not well, then well, then not again. What other services
// it has does not count.
func TestNotServing(t *testing.T) {
	var asked atomic.Int32
	h := health.NewServer()
	h.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus("other", healthv1.HealthCheckResponse_SERVING)
	s := start(t, "127.0.0.1:0", h, func(_ *parleyv1.RespondRequest, stream pieces) error {
		asked.Add(1)
		return stream.Send(text("well"))
	})
	a := open(t, Config{Address: s.address})
	for range 2 {
		until(t, a, connectivity.TransientFailure)
		a.readyTimeout = 50 * time.Millisecond
		before := asked.Load()
		_, err := collect(t.Context(), a, nil)
		if got := mustFail(t, err); got.Message != "the agent is not available" ||
			!strings.Contains(got.Detail, "NOT_SERVING") || !got.Retryable {
			t.Errorf("%+v", got)
		}
		if asked.Load() != before {
			t.Error("an agent that is not well was asked")
		}

		// A turn that waits goes on as soon as the agent is well.
		a.readyTimeout = untilFailed
		answered := make(chan error, 1)
		go func() {
			_, err := collect(t.Context(), a, nil)
			answered <- err
		}()
		h.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
		if err := wait(t, "the answer", answered); err != nil {
			t.Fatal(err)
		}
		h.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	}
}

// mute is a health service that does not answer.
type mute struct {
	healthv1.UnimplementedHealthServer
	asked chan struct{}
}

func (m *mute) Watch(_ *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	close(m.asked)
	<-stream.Context().Done()
	return nil
}

func TestHealthStalls(t *testing.T) {
	m := &mute{asked: make(chan struct{})}
	s := new(service)
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, s)
	healthv1.RegisterHealthServer(server, m)
	s.serve(t, "127.0.0.1:0", server)
	a := open(t, Config{Address: s.address})
	a.conn.Connect()
	wait(t, "the health check", m.asked)
	a.readyTimeout = 50 * time.Millisecond
	_, err := collect(t.Context(), a, nil)
	want := s.address + ": it was not ready within 50ms"
	if got := mustFail(t, err); got.Message != "the agent is not available" || got.Detail != want || !got.Retryable {
		t.Errorf("%+v, want %q", got, want)
	}
}

// TestHeadersWithHealth has an agent that wants the key with every call, health checks too.
func TestHeadersWithHealth(t *testing.T) {
	signedIn := func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		if strings.Join(md["x-key"], "") != "marked-key-1234" {
			return status.Error(codes.Unauthenticated, "who is this?")
		}
		return nil
	}
	s := start(t, "127.0.0.1:0", health.NewServer(), says("signed in"), grpc.StreamInterceptor(
		func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := signedIn(stream.Context()); err != nil {
				return err
			}
			return next(server, stream)
		}))
	a := open(t, Config{Address: s.address, Headers: map[string]string{"X-Key": "marked-key-1234"}})
	if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
		t.Errorf("%v, %v", answer, err)
	}

	a = open(t, Config{Address: s.address, Headers: map[string]string{"X-Key": "marked-key-9999"}})
	until(t, a, connectivity.TransientFailure)
	a.readyTimeout = 50 * time.Millisecond
	_, err := collect(t.Context(), a, nil)
	if got := mustFail(t, err); !strings.Contains(got.Detail, "who is this?") || strings.Contains(got.Message+got.Detail, "marked") {
		t.Errorf("%+v", got)
	}
}
