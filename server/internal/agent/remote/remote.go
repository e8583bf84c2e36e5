// Package remote is an agent that calls a service over gRPC. The service implements AgentService in
// any language.
//
// # Connection
//
// The first turn connects. If the connection breaks, it is restored automatically, with waits that
// increase from 0.1 s to 2 s. A connection that is idle for half an hour is closed until the next turn.
// If a name has several addresses, turns are distributed round-robin over the healthy ones. HTTPS_PROXY
// is ignored, because agents usually run in the same network.
//
// If the agent serves grpc.health.v1.Health, its health is watched for service "", and it receives turns
// only while its status is SERVING. An agent without that service counts as healthy. A turn waits 5 s for
// an agent that is not ready, and then fails with a retryable error.
//
// # Retries
//
// A call is repeated only if the agent cannot have received it. This includes calls that a closing server
// refuses, which gRPC sends again automatically. For any other failure, the agent may have acted on the
// request before its first piece, so only the caller can decide to repeat it.
//
// # Lost agents
//
// A machine that disappears is detected after 25 s, see [dial]. A process that hangs is detected by the
// limits of the turn.
//
// Start at [New].
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
	_ "google.golang.org/grpc/health" // Enables the health checks in serviceConfig.
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/tracing"
)

const (
	// defaultPieceBytes is the default of Config.MaxPieceBytes.
	defaultPieceBytes = rules.MaxGRPCBytes
	// maxHeaderBytes is the maximum size of headers and of trailers, which contain the status.
	maxHeaderBytes = 64 << 10

	// readyTimeout is how long a turn waits for an agent that is not ready. It is longer than one
	// attempt to connect and the wait before it.
	readyTimeout   = 5 * time.Second
	connectTimeout = 4 * time.Second
	maxBackoff     = 2 * time.Second

	// serviceConfig distributes turns round-robin and enables health checks. pick_first, gRPC's
	// default policy, does not support health checks.
	serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}`
)

// Config describes the agent's address and connection.
type Config struct {
	// Address is "host:port", "dns:///host:port" or "unix:PATH". Required.
	Address string
	// TLS secures the connection. If nil, the connection is plaintext. The agent's certificate must
	// be valid for ServerName, or for the host of Address if ServerName is empty.
	TLS *tls.Config
	// Headers are sent as gRPC metadata with each call, including health checks. They may be
	// secret: no error contains a value of 4 bytes or more.
	Headers map[string]string
	// MaxPieceBytes is the maximum encoded size of a piece. If 0, it is 4 MiB.
	MaxPieceBytes int
}

// Agent calls an AgentService. It is safe for concurrent use.
type Agent struct {
	address       string
	maxPieceBytes int
	readyTimeout  time.Duration
	secrets       []string
	conn          *grpc.ClientConn
	service       parleyv1.AgentServiceClient
}

// New returns an agent for the configured service. It does not connect yet. The error lists all
// faults of the configuration.
func New(config Config) (*Agent, error) { return connect(config) }

// connect is New with additional options, which have precedence.
func connect(config Config, extra ...grpc.DialOption) (*Agent, error) {
	sent, err := newHeaders(config.Headers)
	faults := []error{checkAddress(config.Address), err}
	if config.MaxPieceBytes < 0 {
		faults = append(faults, fmt.Errorf("max piece bytes: %d is less than 0", config.MaxPieceBytes))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	a := &Agent{
		address: config.Address, maxPieceBytes: config.MaxPieceBytes, readyTimeout: readyTimeout, secrets: sent.secrets(),
	}
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
		grpc.WithDisableServiceConfig(), // A service config from DNS could enable retries.
		grpc.WithUserAgent("parley"),
		grpc.WithContextDialer(dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: deadAfter}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff,
			},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithStatsHandler(responseRecorder{}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rules.Codec()),
			grpc.MaxCallRecvMsgSize(a.maxPieceBytes),
			// gRPC repeats a call that a closing server refuses only if the request is buffered completely.
			// The limits of a conversation limit its size.
			grpc.MaxRetryRPCBufferSize(math.MaxInt32),
		),
	}
	if a.conn, err = grpc.NewClient(config.Address, append(options, extra...)...); err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	a.service = parleyv1.NewAgentServiceClient(a.conn)
	return a, nil
}

// Close closes the connection.
func (a *Agent) Close() error { return a.conn.Close() }

// Respond sends the request once and passes on the pieces. The call ends when ctx ends, whose
// deadline the agent receives, or when the consumer stops.
//
// A piece of an unknown kind is ignored, because the agent may be newer. gRPC ignores unknown
// fields for the same reason.
func (a *Agent) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		call, cancel := context.WithCancel(ctx)
		var pairs []string
		tracing.Inject(ctx, func(key, value string) { pairs = append(pairs, key, value) })
		if len(pairs) > 0 {
			call = metadata.AppendToOutgoingContext(call, pairs...)
		}
		defer cancel()
		call, received := record(call)
		stream, err := a.open(call, request)
		if err != nil {
			yield(nil, endOr(ctx, err))
			return
		}
		for started := false; ; {
			piece, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				err = endOr(ctx, a.failure(err, received, started))
			default:
				err = context.Cause(ctx) // A piece received before the end must not be yielded after it.
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if piece.GetPiece() == nil {
				continue
			}
			started = true
			if !yield(piece, nil) {
				return
			}
		}
	}
}

// open sends the request when the agent is ready.
func (a *Agent) open(
	ctx context.Context, request *parleyv1.RespondRequest,
) (grpc.ServerStreamingClient[parleyv1.RespondResponse], error) {
	switch a.await(ctx) {
	case connectivity.Idle, connectivity.Connecting:
		return nil, a.unavailable(fmt.Sprintf("it was not ready within %v", a.readyTimeout))
	default:
		// Without a connection, the call fails at once with the reason.
		stream, err := a.service.Respond(ctx, request)
		if err != nil {
			return nil, a.unopened(err)
		}
		return stream, nil
	}
}

// await waits until the agent is ready, ctx ends or readyTimeout expires. It returns the last
// state.
func (a *Agent) await(ctx context.Context) connectivity.State {
	ctx, cancel := context.WithTimeout(ctx, a.readyTimeout)
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

// endOr returns the cause of ctx if ctx has ended, otherwise err.
func endOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
