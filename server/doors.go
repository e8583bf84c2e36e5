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

// socketPrefix is what an address begins with that is the path of a socket.
const socketPrefix = "unix:"

// maxGRPCBytes is the largest request and reply; clients have the same limit.
const maxGRPCBytes = 4 << 20

// A stop ends within stopMargin of the grace for running turns: an agent has its time to
// end, then streams have lastWords to send what their turns ended with, and a little is left
// for closing the store and for lastLines, those that still wait for the log.
const (
	stopMargin = 5 * time.Second
	lastWords  = 2 * time.Second
	closing    = 250 * time.Millisecond
	lastLines  = closing / 2
	lastMoment = closing / 4 // to end the process, if it comes to that
)

// doors are the addresses that the server listens on.
type doors struct {
	log          *slog.Logger
	service      *rpc.Server
	grpc         *grpc.Server
	health       *health.Server
	grpcListener net.Listener
	http         *httpDoor // nil: off
	ready        atomic.Bool
}

// openDoors listens on the addresses of the settings; nothing is served yet.
func openDoors(ctx context.Context, c *config.Config, service *rpc.Server, log *slog.Logger) (*doors, error) {
	d := &doors{log: log, service: service, health: health.NewServer()}
	d.grpc = grpc.NewServer(append(grpcOptions(c.KeepaliveTime), service.ServerOptions()...)...)
	service.Register(d.grpc)
	healthv1.RegisterHealthServer(d.grpc, d.health)
	reflection.Register(d.grpc)
	var err error
	if d.grpcListener, err = listen(ctx, c.GRPCAddress); err != nil {
		return nil, fmt.Errorf("listen for gRPC: %w; another server may be running, choose another --grpc-address", err)
	}
	if c.HTTPAddress == "" {
		return d, nil
	}
	if d.http, err = openHTTP(ctx, c, service, &d.ready, log); err != nil {
		return nil, errors.Join(err, d.grpcListener.Close())
	}
	return d, nil
}

// grpcOptions are the limits that every stream and connection has; where they come from is
// measured: grpc-go's own defaults leave most of them open.
func grpcOptions(keepaliveTime time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxRecvMsgSize(maxGRPCBytes),
		grpc.MaxSendMsgSize(maxGRPCBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTime / 3, MaxConnectionIdle: 15 * time.Minute}),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true), // The store closes after them.
		grpc.WriteBufferSize(64 << 10),
		// Goroutines that stay keep their stacks grown: a tenth less CPU a call, measured side
		// by side. While all are busy, say with Chat, a call gets a new one.
		grpc.NumStreamWorkers(128),
	}
}

// listen opens host:port or unix:PATH. A socket file that no server listens on any more is
// replaced.
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
		if !errors.Is(err, syscall.ECONNREFUSED) { // A server that is too busy does not refuse.
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

// serve has the group serve at all doors until they are stopped.
func (d *doors) serve(group *errgroup.Group) {
	group.Go(d.serveGRPC)
	if d.http != nil {
		group.Go(d.http.loopback.serve)
		group.Go(d.http.serve)
	}
}

func (d *doors) serveGRPC() error {
	for service := range d.grpc.GetServiceInfo() {
		d.health.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	}
	d.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	d.ready.Store(true)
	address := d.grpcListener.Addr().String()
	if d.grpcListener.Addr().Network() == "unix" {
		address = socketPrefix + address // as clients dial it
	}
	d.log.Info("serving grpc", "address", address)
	if err := d.grpc.Serve(d.grpcListener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // It was stopped before it was begun.
}

// stop ends service in order: no new turns, waiting readers leave, running turns get the
// grace, in which they can be read, resumed and cancelled; then no new calls, streams send
// their last events, and whatever is left is cut off.
func (d *doors) stop(ctx context.Context, grace time.Duration, turns *turn.Manager) {
	d.log.Info("stopping", "running_turns", turns.Running(), "grace", grace.String())
	d.ready.Store(false)
	d.health.Shutdown()
	d.service.Stop()
	latest := time.Now().Add(grace + stopMargin - closing)
	grown, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	turns.Stop(grown)
	last, cancelLast := context.WithTimeout(ctx, min(lastWords, time.Until(latest)))
	defer cancelLast()
	var draining sync.WaitGroup
	draining.Go(func() {
		cut := context.AfterFunc(last, d.grpc.Stop)
		defer cut()
		d.grpc.GracefulStop()
	})
	if d.http != nil {
		draining.Go(func() { d.http.stop(last) })
	}
	draining.Wait()
	d.log.Info("stopped")
}
