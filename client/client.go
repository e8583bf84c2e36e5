// Package client talks to a Parley server from Go.
//
// Begin with [Dial]. Ask an agent with [Client.Chat], which streams the answer, and come back
// to one with [Client.ResumeTurn]; see what happens to conversations as it does with
// [Client.WatchConversations]. None of them minds a connection that breaks or a server that
// restarts meanwhile. Every other call is a method of the generated stubs that [Client]
// embeds: CreateConversation, AppendMessages, GetRoutingSummary, GetStats and so on. [Reason]
// tells errors apart. The examples append to a conversation, load it, chat, route, and watch.
//
// Three things hold for every call:
//
//   - An empty request_id is filled with a random UUID, on a copy of the request. The server
//     does the work of a request_id once, so a call that carries one may be sent again.
//   - Calls that only read, and calls that carry a request_id, are sent up to five times
//     within about 1.5 s while the server is UNAVAILABLE: a quick restart goes unnoticed.
//     The others (update, delete, clear, purge, lease, import) are sent once. A stream that
//     breaks after its first message is not sent again; the three above ask for the rest.
//   - A program that repeats a call itself, say after its own restart, sets the request_id
//     itself, to the same value each time.
package client

import (
	_ "embed" // for the service config
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// The same as the server's, so that whatever it sends can be read.
	maxMessageBytes = 4 << 20
	// gRPC sends a call again only while it remembers it whole, framing included; its own
	// default of 256 KiB is less than a batch of messages may have.
	maxRetryBytes = maxMessageBytes + 64<<10
)

// The retried methods, each by name; a test compares the list with the services.
//
//go:embed service_config.json
var serviceConfig string

// Client is a connection to one Parley server. It is safe for use by many goroutines at
// once, and one is enough for a program. Of the embedded stubs, Chat, ResumeTurn and
// WatchConversations are hidden by methods of Client; the generated ones are
// Client.ConversationServiceClient.Chat and so on.
type Client struct {
	parleyv1.ConversationServiceClient
	parleyv1.InteractionLogServiceClient
	parleyv1.AdminServiceClient

	conn *grpc.ClientConn
}

// Dial returns a client of the server at target: "host:port", "unix:PATH", or any other
// target that gRPC can resolve. It does not connect yet: where there is no server, the first
// call fails with UNAVAILABLE. An error means that target or opts make no sense. Call Close
// when done.
//
// The connection is plaintext when target is a loopback address, localhost or a Unix socket,
// and else TLS with the system's certificates. opts come after the defaults and replace them:
// [grpc.WithTransportCredentials] sets another security, [grpc.WithUserAgent] the name
// that servers are told, [grpc.WithDefaultServiceConfig] other retries. Messages may have
// 4 MiB in either direction. A connection that has been silent for 30 s is checked, and
// given up after another 10 s.
func Dial(target string, opts ...grpc.DialOption) (*Client, error) {
	defaults := []grpc.DialOption{
		grpc.WithTransportCredentials(defaultCredentials(target)),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithUserAgent("parley-client"),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxMessageBytes),
			grpc.MaxCallSendMsgSize(maxMessageBytes),
			grpc.MaxRetryRPCBufferSize(maxRetryBytes),
		),
		// The server cuts off clients that ask more often than every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		// Connect anew as quickly as calls are retried: they would else all fail on the
		// connection that a restart broke.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second,
			},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(fillUnary),
		grpc.WithChainStreamInterceptor(fillStream),
	}
	conn, err := grpc.NewClient(target, append(defaults, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	return &Client{
		ConversationServiceClient:   parleyv1.NewConversationServiceClient(conn),
		InteractionLogServiceClient: parleyv1.NewInteractionLogServiceClient(conn),
		AdminServiceClient:          parleyv1.NewAdminServiceClient(conn),
		conn:                        conn,
	}, nil
}

// Close ends the connection; calls that are under way fail with CANCELED. Turns that they
// began go on at the server, unless they asked for ON_DISCONNECT_CANCEL.
func (c *Client) Close() error {
	return c.conn.Close()
}

func defaultCredentials(target string) credentials.TransportCredentials {
	if isLocal(target) {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(nil)
}

// isLocal reports whether target cannot leave this machine. What it does not understand
// can.
func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	for _, scheme := range []string{"dns:", "passthrough:"} {
		if rest, found := strings.CutPrefix(target, scheme); found {
			target = rest[strings.LastIndex(rest, "/")+1:] // An authority may stand between slashes.
			break
		}
	}
	host, _, err := net.SplitHostPort(target)
	switch {
	case err != nil:
		host = strings.Trim(target, "[]") // No port; gRPC takes 443.
	case host == "":
		return true // gRPC, like the net package, takes ":50051" for this machine.
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}
