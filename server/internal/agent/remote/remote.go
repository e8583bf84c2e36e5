// Package remote is the agent that is a service: anything that implements AgentService, in
// any language, called over gRPC. Begin with [New].
//
// # How it is reached
//
// The first turn connects. From then on the connection is kept, and made again by itself
// when it breaks, after waits that grow from 0.1 s to 2 s; one that nobody has used for half
// an hour is given up until the next turn. Where a name has several addresses, turns go to
// them one after the other, to those that are well. HTTPS_PROXY is not heeded: agents are
// neighbours.
//
// An agent that serves grpc.health.v1.Health is asked how it is, as service "", and gets
// turns only while it says SERVING; one without that service counts as well. A turn waits
// 5 s for an agent that is not ready and then fails with an error that may be retried.
//
// # What is retried
//
// Only what the agent cannot have seen: waiting for a connection, and calls that a server
// refuses as it closes, which gRPC sends again by itself. An agent may have acted on anything
// else before its first piece, so that is for those to repeat who asked.
//
// # How it is lost
//
// A machine that vanishes is noticed after 25 s, see [dial]; a process that hangs, by the
// turn's own limits.
package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // checks the health of servers, as the service config asks
	"google.golang.org/grpc/keepalive"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

const (
	// defaultPieceBytes is gRPC's own limit of a message.
	defaultPieceBytes = 4 << 20
	// maxHeaderBytes is the most that an agent may send of headers or trailers, its status
	// among them.
	maxHeaderBytes = 64 << 10

	// patience is how long a turn waits for an agent that is not ready: longer than one try
	// to connect and than the wait before it.
	patience       = 5 * time.Second
	connectTimeout = 4 * time.Second
	maxBackoff     = 2 * time.Second

	// serviceConfig asks for turns to go round and for health checks. round_robin does them;
	// pick_first, gRPC's default, does not.
	serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}`
)

// Config says where the agent is, and how to talk to it.
type Config struct {
	// Address of the agent: "host:port", "dns:///host:port" or "unix:PATH". Required.
	Address string
	// TLS secures the connection; nil is plaintext. The name that the agent's certificate
	// must have is ServerName, or the host of Address where that is empty.
	TLS *tls.Config
	// Headers go with every call, health checks too, as gRPC metadata. They may be secret:
	// no error shows a value of 4 bytes or more.
	Headers map[string]string
	// MaxPieceBytes is how large one piece may be, encoded; 0 is 4 MiB.
	MaxPieceBytes int
}

// Agent calls an AgentService. It is safe for use by many goroutines at once.
type Agent struct {
	address       string
	maxPieceBytes int
	patience      time.Duration
	secrets       []string
	conn          *grpc.ClientConn
	service       parleyv1.AgentServiceClient
}

// New makes an agent of the service that the configuration names, which it does not connect
// to yet. Every fault of the configuration is in the one error.
func New(config Config) (*Agent, error) { return connect(config) }

// connect is New with options that come after its own.
func connect(config Config, extra ...grpc.DialOption) (*Agent, error) {
	sent, err := newHeaders(config.Headers)
	faults := []error{checkAddress(config.Address), err}
	if config.MaxPieceBytes < 0 {
		faults = append(faults, fmt.Errorf("max piece bytes: %d is less than 0", config.MaxPieceBytes))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	a := &Agent{address: config.Address, maxPieceBytes: config.MaxPieceBytes, patience: patience, secrets: sent.secrets()}
	if a.maxPieceBytes == 0 {
		a.maxPieceBytes = defaultPieceBytes
	}
	security := insecure.NewCredentials()
	if config.TLS != nil {
		security = credentials.NewTLS(config.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithPerRPCCredentials(sent),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // A name server could ask for retries.
		grpc.WithUserAgent("parley"),
		grpc.WithContextDialer(dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: deadAfter}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithStatsHandler(listener{}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rules.Codec()),
			grpc.MaxCallRecvMsgSize(a.maxPieceBytes),
			// A call that a closing server refuses is sent again only if it is remembered
			// whole; its size is bounded by what a conversation may have.
			grpc.MaxRetryRPCBufferSize(math.MaxInt32),
		),
	}
	if a.conn, err = grpc.NewClient(config.Address, append(options, extra...)...); err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	a.service = parleyv1.NewAgentServiceClient(a.conn)
	return a, nil
}

// Close ends the connection.
func (a *Agent) Close() error { return a.conn.Close() }

// Respond sends the request once and passes on the pieces that come. The end of ctx, whose
// deadline the agent is told, and the consumer's end the call at once.
//
// A piece of a kind that this server does not know is passed over, as gRPC passes over
// fields: the agent may be newer.
func (a *Agent) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		call, cancel := context.WithCancel(ctx)
		defer cancel()
		call, heard := listen(call)
		stream, err := a.open(call, request)
		if err != nil {
			yield(nil, endOr(ctx, err))
			return
		}
		for begun := false; ; {
			piece, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				err = endOr(ctx, a.failure(err, heard, begun))
			default:
				err = context.Cause(ctx) // What had come before the end is not wanted after it.
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if piece.GetPiece() == nil {
				continue
			}
			begun = true
			if !yield(piece, nil) {
				return
			}
		}
	}
}

// open sends the request as soon as the agent is ready.
func (a *Agent) open(ctx context.Context, request *parleyv1.RespondRequest) (grpc.ServerStreamingClient[parleyv1.RespondResponse], error) {
	switch a.await(ctx) {
	case connectivity.Idle, connectivity.Connecting:
		return nil, a.unavailable(fmt.Sprintf("it was not ready within %v", a.patience))
	default:
		// Where there is no connection, the call fails at once and says why there is none.
		stream, err := a.service.Respond(ctx, request)
		if err != nil {
			return nil, a.unopened(err)
		}
		return stream, nil
	}
}

// await waits for the agent to be ready, for as long as ctx and patience allow, and returns
// how it is then.
func (a *Agent) await(ctx context.Context) connectivity.State {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	for {
		state := a.conn.GetState()
		switch state {
		case connectivity.Ready, connectivity.Shutdown:
			return state
		case connectivity.Idle:
			a.conn.Connect()
		}
		if !a.conn.WaitForStateChange(ctx, state) {
			return state
		}
	}
}

// endOr is why ctx has ended, or err where it has not.
func endOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
