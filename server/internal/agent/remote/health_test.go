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

// TestNotServing: an agent receives turns only while its own service is SERVING. The status of
// other services is ignored.
func TestNotServing(t *testing.T) {
	var calls atomic.Int32
	h := health.NewServer()
	h.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus("other", healthv1.HealthCheckResponse_SERVING)
	s := start(t, "127.0.0.1:0", h, func(_ *parleyv1.RespondRequest, stream pieces) error {
		calls.Add(1)
		return stream.Send(text("well"))
	})
	a := open(t, Config{Address: s.address})
	for range 2 {
		until(t, a, connectivity.TransientFailure)
		a.readyTimeout = 50 * time.Millisecond
		before := calls.Load()
		_, err := collect(t.Context(), a, nil)
		if got := mustFail(t, err); got.Message != "the agent is not available" ||
			!strings.Contains(got.Detail, "NOT_SERVING") || !got.Retryable {
			t.Errorf("error = %+v, want that the agent is not available", got)
		}
		if calls.Load() != before {
			t.Error("agent was called while NOT_SERVING")
		}

		// A waiting turn continues when the agent is SERVING.
		a.readyTimeout = testTimeout
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

// stalledHealth is a health service that does not answer.
type stalledHealth struct {
	healthv1.UnimplementedHealthServer
	calls chan struct{}
}

func (m *stalledHealth) Watch(_ *healthv1.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse],
) error {
	close(m.calls)
	<-stream.Context().Done()
	return nil
}

func TestHealthStalls(t *testing.T) {
	m := &stalledHealth{calls: make(chan struct{})}
	s := new(service)
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, s)
	healthv1.RegisterHealthServer(server, m)
	s.serve(t, "127.0.0.1:0", server)
	a := open(t, Config{Address: s.address})
	a.conn.Connect()
	wait(t, "the health check", m.calls)
	a.readyTimeout = 50 * time.Millisecond
	_, err := collect(t.Context(), a, nil)
	want := s.address + ": it was not ready within 50ms"
	if got := mustFail(t, err); got.Message != "the agent is not available" || got.Detail != want || !got.Retryable {
		t.Errorf("error = %+v, want %q", got, want)
	}
}

// TestHeadersWithHealth: the headers are sent with health checks too.
func TestHeadersWithHealth(t *testing.T) {
	signedIn := func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		if strings.Join(md["x-key"], "") != "marked-key-1234" {
			return status.Error(codes.Unauthenticated, "unknown key")
		}
		return nil
	}
	s := start(t, "127.0.0.1:0", health.NewServer(), answerTexts("signed in"), grpc.StreamInterceptor(
		func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := signedIn(stream.Context()); err != nil {
				return err
			}
			return next(server, stream)
		}))
	a := open(t, Config{Address: s.address, Headers: map[string]string{"X-Key": "marked-key-1234"}})
	if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
		t.Errorf("Respond = %v, %v, want one piece", answer, err)
	}

	a = open(t, Config{Address: s.address, Headers: map[string]string{"X-Key": "marked-key-9999"}})
	until(t, a, connectivity.TransientFailure)
	a.readyTimeout = 50 * time.Millisecond
	_, err := collect(t.Context(), a, nil)
	if got := mustFail(t, err); !strings.Contains(got.Detail, "unknown key") ||
		strings.Contains(got.Message+got.Detail, "marked") {
		t.Errorf("error = %+v, want unknown key", got)
	}
}
