package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"slices"
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
	// A connection that answers no ping for deadAfter is closed. Servers allow a ping every 10 s.
	pingAfter = 10 * time.Second
	deadAfter = 5 * time.Second
)

// A server accepts 1024 streams on a connection. Calls that are not streams have a connection of their own, so that
// they never wait for the end of a stream.
const (
	maxStreams     = 900 // on a connection
	maxStreamConns = 16  // to a server
)

// conns are the connections to other servers. The zero value has none.
type conns struct {
	tls *tls.Config

	mu     sync.Mutex
	open   map[string]*links // by address
	closed bool
}

// links are the connections to one server. conns.mu guards them.
type links struct {
	unary   *grpc.ClientConn
	streams []*streamLink
}

// streamLink is a connection with the number of its streams.
type streamLink struct {
	conn *grpc.ClientConn
	open int
}

// unary returns a client of another server for calls that are not streams. The first call makes the connection.
func (t *Turns) unary(ctx context.Context, to store.Server) (parleyv1.ConversationServiceClient, error) {
	l, err := t.links(ctx, to)
	if err != nil {
		return nil, err
	}
	return parleyv1.NewConversationServiceClient(l.unary), nil
}

// stream returns a client of another server for one stream. The caller must call release after the stream.
func (t *Turns) stream(
	ctx context.Context, to store.Server,
) (client parleyv1.ConversationServiceClient, release func(), err error) {
	l, err := t.links(ctx, to)
	if err != nil {
		return nil, nil, err
	}
	conn, release, err := t.conns.stream(to.Address, l)
	if err != nil {
		return nil, nil, err
	}
	return parleyv1.NewConversationServiceClient(conn), release, nil
}

// stream returns a connection to an address for one stream. l are the connections to it, as get has returned them.
func (c *conns) stream(address string, l *links) (conn *grpc.ClientConn, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[address] != l { // In the meantime, keep or close has closed them, and would not close a new one.
		return nil, nil, ErrUnreachable
	}
	at := slices.IndexFunc(l.streams, func(s *streamLink) bool { return s.open < maxStreams })
	if at < 0 {
		if len(l.streams) == maxStreamConns {
			return nil, nil, ErrUnreachable
		}
		conn, err := c.dial(address)
		if err != nil {
			return nil, nil, err
		}
		at, l.streams = len(l.streams), append(l.streams, &streamLink{conn: conn})
	}
	link := l.streams[at]
	link.open++
	return link.conn, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		link.open--
	}, nil
}

// links returns the connections to a server.
func (t *Turns) links(ctx context.Context, to store.Server) (*links, error) {
	l, isNew, err := t.conns.get(to.Address)
	if err != nil || !isNew {
		return l, err
	}
	// A new server has often replaced another one: connections to those that do not exist any more are closed.
	peers, err := t.shared.Peers(ctx)
	if err != nil {
		return nil, err
	}
	t.conns.keep(append(peers, to))
	return l, nil
}

// get returns the connections to an address, and whether they are new.
func (c *conns) get(address string) (_ *links, isNew bool, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.open[address]; l != nil {
		return l, false, nil
	}
	if c.closed {
		return nil, false, ErrUnreachable
	}
	conn, err := c.dial(address)
	if err != nil {
		return nil, false, err
	}
	if c.open == nil {
		c.open = make(map[string]*links)
	}
	c.open[address] = &links{unary: conn}
	return c.open[address], true, nil
}

// dial returns a connection, which the first call makes.
func (c *conns) dial(address string) (*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if c.tls != nil {
		security = credentials.NewTLS(c.tls)
	}
	// passthrough: the address is that of one server, not of several servers with one name.
	return grpc.NewClient("passthrough:///"+address,
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
}

// close closes all connections to a server.
func (l *links) close() error {
	errs := []error{l.unary.Close()}
	for _, s := range l.streams {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(errs...)
}

// keep closes the connections to all other servers.
func (c *conns) keep(servers []store.Server) {
	kept := make(map[string]bool, len(servers))
	for _, server := range servers {
		kept[server.Address] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for address, l := range c.open {
		if !kept[address] {
			_ = l.close()
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
	for _, l := range c.open {
		errs = append(errs, l.close())
	}
	c.open = nil
	return errors.Join(errs...)
}
