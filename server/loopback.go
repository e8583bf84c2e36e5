package main

import (
	"context"
	"errors"
	"math"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/parleyhq/parley/server/internal/rpc"
)

// What a loopback connection may hold: in either direction, and for a stream until its
// reader goes on. Fixed windows spare it gRPC's measuring of a network that is not there.
const (
	pipeBytes   = 256 << 10
	streamBytes = 256 << 10
	connBytes   = 16 << 20
)

// loopbackWorkers are goroutines that stay, as those of the other door do.
const loopbackWorkers = 32

// loopback is the server's way to itself, for the doors that speak something else and
// translate: connections in memory, which nobody else can open, to a grpc.Server of their
// own with the same handlers, interceptors and sizes. It does not limit the time of a send: the
// doors do that for their clients. It bounds no streams on a connection:
// those doors share one, and a call must not wait for the watchers of others.
type loopback struct {
	server   *grpc.Server
	listener *bufconn.Listener
	conn     *grpc.ClientConn
}

func newLoopback(service *rpc.Server) (*loopback, error) {
	l := &loopback{listener: bufconn.Listen(pipeBytes)}
	l.server = grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxGRPCBytes),
		grpc.MaxSendMsgSize(maxGRPCBytes),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(loopbackWorkers),
		grpc.StaticStreamWindowSize(streamBytes),
		grpc.StaticConnWindowSize(connBytes),
		grpc.WriteBufferSize(0), // No system calls to be spared.
		grpc.ReadBufferSize(0),
	}, service.LoopbackOptions()...)...)
	service.Register(l.server)
	var err error
	l.conn, err = grpc.NewClient("passthrough:loopback", l.dialOptions()...)
	return l, err
}

// dialOptions are those with which any gRPC client gets there.
func (l *loopback) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxGRPCBytes), grpc.MaxCallSendMsgSize(maxGRPCBytes)),
		grpc.WithStaticStreamWindowSize(streamBytes),
		grpc.WithStaticConnWindowSize(connBytes),
		grpc.WithWriteBufferSize(0),
		grpc.WithReadBufferSize(0),
		// No pings, whatever the client's defaults are: a connection in memory cannot fail
		// silently, and the server ends the connection of an idle client that pings more often than
		// it allows.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: math.MaxInt64}),
	}
}

func (l *loopback) serve() error {
	if err := l.server.Serve(l.listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // It was stopped before it was begun.
}

// stop lets the calls that are under way end, until ctx does.
func (l *loopback) stop(ctx context.Context) {
	cut := context.AfterFunc(ctx, l.server.Stop)
	defer cut()
	l.server.GracefulStop()
	_ = l.conn.Close()
}
