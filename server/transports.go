package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// socketPrefix is the prefix of an address that is the path of a Unix socket.
const socketPrefix = "unix:"

// maxGRPCBytes is the maximum size of a request and of a reply. Clients have the same limit.
const maxGRPCBytes = 4 << 20

// Time limits of a stop. It ends within stopMargin after the grace period of running turns. The
// margin is for cancelled agents to end, then streamDrainTime for streams to send the last events
// of their turns, then storeCloseTime to close the store and the logs.
const (
	stopMargin         = 5 * time.Second
	streamDrainTime    = 2 * time.Second
	storeCloseTime     = 250 * time.Millisecond
	changeLogDrainTime = storeCloseTime / 2 // Close of a changeLog waits that long for its entries.
	exitTime           = storeCloseTime / 4 // The process exits that long before the end of the margin if the stop hangs.
)

// transports are the gRPC server and the HTTP server with their listeners.
type transports struct {
	log          *slog.Logger
	service      *rpc.Server
	grpc         *grpc.Server
	health       *health.Server
	grpcListener net.Listener
	http         *httpTransport // nil if HTTP is off
	ready        atomic.Bool    // what /readyz reports
}

// openTransports listens on the addresses of the settings. It does not serve yet.
func openTransports(ctx context.Context, c *config.Config, service *rpc.Server, log *slog.Logger) (*transports, error) {
	t := &transports{log: log, service: service, health: health.NewServer()}
	t.grpc = grpc.NewServer(append(grpcOptions(c.KeepaliveTime), service.ServerOptions()...)...)
	service.Register(t.grpc)
	healthv1.RegisterHealthServer(t.grpc, t.health)
	reflection.Register(t.grpc)
	var err error
	if t.grpcListener, err = listen(ctx, c.GRPCAddress); err != nil {
		return nil, fmt.Errorf("listen for gRPC: %w; another server may be running, choose another --grpc-address", err)
	}
	if c.HTTPAddress == "" {
		return t, nil
	}
	if t.http, err = openHTTPTransport(ctx, c, service, &t.ready, log); err != nil {
		return nil, errors.Join(err, t.grpcListener.Close())
	}
	return t, nil
}

// grpcOptions returns the limits of every stream and connection. The defaults of grpc-go leave most
// of them unlimited. The values come from measurements.
func grpcOptions(keepaliveTime time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxRecvMsgSize(maxGRPCBytes),
		grpc.MaxSendMsgSize(maxGRPCBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTime / 3, MaxConnectionIdle: 15 * time.Minute}),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true), // The store closes after the handlers have returned.
		grpc.WriteBufferSize(64 << 10),
		// Worker goroutines keep their grown stacks, which saves a tenth of the CPU time of a call, as
		// measured. While all workers are busy, for example with Chat, a call gets a new goroutine.
		grpc.NumStreamWorkers(128),
	}
}

// listen listens on host:port or unix:PATH. It replaces a socket file that no server listens on.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var (
		listener net.ListenConfig
		dialer   net.Dialer
	)
	path, isUnix := strings.CutPrefix(address, socketPrefix)
	if !isUnix {
		return listener.Listen(ctx, "tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("%s is in use", path), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // A busy server causes another error.
			return nil, fmt.Errorf("%s is in use: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := listener.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o600)
}

// serve starts all transports in group. They serve until stop.
func (t *transports) serve(group *errgroup.Group) {
	group.Go(t.serveGRPC)
	if t.http != nil {
		group.Go(t.http.loopback.serve)
		group.Go(t.http.serve)
	}
}

func (t *transports) serveGRPC() error {
	for service := range t.grpc.GetServiceInfo() {
		t.health.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	}
	t.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	t.ready.Store(true)
	address := t.grpcListener.Addr().String()
	if t.grpcListener.Addr().Network() == "unix" {
		address = socketPrefix + address // as clients dial it
	}
	t.log.Info("serving grpc", "address", address)
	if err := t.grpc.Serve(t.grpcListener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // It was stopped before it served.
}

// stop ends service in this order:
//  1. New turns are rejected, and calls that wait for a change end.
//  2. Running turns have the grace period to end. In it they can be read, resumed and cancelled.
//  3. New calls are rejected, and streams send their last events.
//  4. When streamDrainTime is over, all remaining calls are cancelled.
func (t *transports) stop(ctx context.Context, grace time.Duration, turns *turn.Manager) {
	t.log.Info("stopping", "running_turns", turns.Running(), "grace", grace.String())
	t.ready.Store(false)
	t.health.Shutdown()
	t.service.Stop()
	deadline := time.Now().Add(grace + stopMargin - storeCloseTime)
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	turns.Stop(graceful)
	drain, cancelDrain := context.WithTimeout(ctx, min(streamDrainTime, time.Until(deadline)))
	defer cancelDrain()
	var draining sync.WaitGroup
	draining.Go(func() {
		cancelStop := context.AfterFunc(drain, t.grpc.Stop)
		defer cancelStop()
		t.grpc.GracefulStop()
	})
	if t.http != nil {
		draining.Go(func() { t.http.stop(drain) })
	}
	draining.Wait()
	t.log.Info("stopped")
}
