package transport

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
	"github.com/parleyhq/parley/server/internal/rules"
)

// Sizes of the buffers of a loopback connection. The flow-control windows are fixed, because
// gRPC's measurement of the network is pointless in memory.
const (
	pipeBytes   = 256 << 10 // of the connection, in each direction
	streamBytes = 256 << 10 // flow-control window of a stream
	connBytes   = 16 << 20  // flow-control window of a connection
)

// loopbackWorkers is the number of worker goroutines; see [GRPCOptions].
const loopbackWorkers = 32

// loopback connects the client of the MCP tools to the gRPC handlers of the same process, since [client.Client] needs a
// connection of gRPC. Its connections are in memory, so no other process can open one. Its grpc.Server is separate but
// has the same handlers, interceptors and size limits. There is no time limit for a send, since the HTTP transport
// limits the time of its own clients. There is no limit on the streams of a connection, since all sessions share one:
// a call must not wait for other sessions' turns.
type loopback struct {
	server   *grpc.Server
	listener *bufconn.Listener
}

func newLoopback(service *rpc.Server) *loopback {
	l := &loopback{listener: bufconn.Listen(pipeBytes)}
	l.server = grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(rules.MaxGRPCBytes),
		grpc.MaxSendMsgSize(rules.MaxGRPCBytes),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(loopbackWorkers),
		grpc.StaticStreamWindowSize(streamBytes),
		grpc.StaticConnWindowSize(connBytes),
		grpc.WriteBufferSize(0), // Buffers save system calls, and there are none.
		grpc.ReadBufferSize(0),
	}, service.LoopbackOptions()...)...)
	service.Register(l.server)
	return l
}

// dialOptions returns the options with which a gRPC client connects to the loopback.
func (l *loopback) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(rules.MaxGRPCBytes), grpc.MaxCallSendMsgSize(rules.MaxGRPCBytes),
		),
		grpc.WithStaticStreamWindowSize(streamBytes),
		grpc.WithStaticConnWindowSize(connBytes),
		grpc.WithWriteBufferSize(0),
		grpc.WithReadBufferSize(0),
		// Turn pings off, whatever the client's defaults are. A connection in memory cannot fail
		// silently, and the server closes the connection of an idle client that pings too often.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: math.MaxInt64}),
	}
}

func (l *loopback) serve() error {
	if err := l.server.Serve(l.listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // It was stopped before it served.
}

// stop waits for running calls to end. When ctx ends, it cancels them.
func (l *loopback) stop(ctx context.Context) {
	cancelStop := context.AfterFunc(ctx, l.server.Stop)
	defer cancelStop()
	l.server.GracefulStop()
}
