package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

const (
	// connectTimeout is how long a call waits for a connection to another server.
	connectTimeout = 2 * time.Second
	// maxBackoff is the maximum time between two attempts to connect, in which calls fail at once.
	maxBackoff = time.Second
	// A server that answers no ping for deadAfter is given up. Servers allow a ping every 10 s.
	pingAfter = 10 * time.Second
	deadAfter = 5 * time.Second
)

// conns are the connections to other servers, one for each address. The zero value has none.
type conns struct {
	tls *tls.Config

	mu     sync.Mutex
	open   map[string]*grpc.ClientConn
	closed bool
}

// client returns a client of another server. The connection is made by the first call.
func (t *Turns) client(ctx context.Context, to store.Server) (parleyv1.ConversationServiceClient, error) {
	conn, isNew, err := t.conns.get(to.Address)
	if err != nil {
		return nil, err
	}
	if isNew { // Servers come and go: this is when the connections to those that have gone are closed.
		peers, err := t.shared.Peers(ctx)
		if err != nil {
			return nil, err
		}
		t.conns.keep(append(peers, to))
	}
	return parleyv1.NewConversationServiceClient(conn), nil
}

// get returns the connection to an address, and whether it is new.
func (c *conns) get(address string) (_ *grpc.ClientConn, isNew bool, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[address]; conn != nil {
		return conn, false, nil
	}
	if c.closed {
		return nil, false, ErrUnreachable
	}
	security := insecure.NewCredentials()
	if c.tls != nil {
		security = credentials.NewTLS(c.tls)
	}
	// passthrough: the address is that of one server, not of several behind a name.
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(security),
		grpc.WithUserAgent("parleyd"),
		grpc.WithNoProxy(), // Servers are in one network.
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: deadAfter}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff,
			},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rules.Codec()),
			grpc.MaxCallRecvMsgSize(rules.MaxGRPCBytes), grpc.MaxCallSendMsgSize(math.MaxInt32),
		))
	if err != nil {
		return nil, false, err
	}
	if c.open == nil {
		c.open = make(map[string]*grpc.ClientConn)
	}
	c.open[address] = conn
	return conn, true, nil
}

// keep closes the connections to all other servers.
func (c *conns) keep(servers []store.Server) {
	kept := make(map[string]bool, len(servers))
	for _, server := range servers {
		kept[server.Address] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for address, conn := range c.open {
		if !kept[address] {
			_ = conn.Close()
			delete(c.open, address)
		}
	}
}

// close closes all connections. Later calls fail with ErrUnreachable.
func (c *conns) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for _, conn := range c.open {
		errs = append(errs, conn.Close())
	}
	c.open = nil
	return errors.Join(errs...)
}
