// Package client is the Go client of a Parley server.
//
// [Dial] returns a [Client]. [Client.Chat] asks an agent and streams the answer.
// [Client.ResumeTurn] returns to a turn. [Client.WatchConversations] reports changes of
// conversations as they are committed. [Client.NewAppender] appends many messages over one stream.
// These four reconnect and resume automatically when the connection breaks, the server restarts or a
// token expires. All other calls are methods of the generated stubs that Client embeds:
// CreateConversation, AppendMessages, GetRoutingSummary, WriteRecords, GetStats and so on.
// [Client.Records] reads and writes the records of a conversation or of the tenant, as bytes or as JSON.
// [Reason] distinguishes errors. The examples append to a conversation, load it, keep state in
// records, chat, route and watch.
//
// Four rules hold for every call:
//
//   - If request_id is empty, the client sets a random UUID on a copy of the request. The server
//     executes a request_id once, so a call with a request_id is safe to send again.
//   - While the server is UNAVAILABLE, calls that only read and calls with a request_id are sent
//     up to five times within about 1.5 s, so that callers do not notice a quick restart. The
//     other calls (update, delete, purge, lease, import) are sent once. A stream that
//     breaks after its first message is not sent again; the four above request the rest.
//   - A call that the server refuses with UNAUTHENTICATED is sent again, once, if there is another
//     token. See [WithToken].
//   - A program that repeats a call itself, for example after its own restart, must set
//     request_id itself, to the same value each time.
//
// Start at [Dial].
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

// MaxGRPCBytes is the maximum encoded size of a request and of a reply. The server has the same limit.
const MaxGRPCBytes = 4 << 20

// maxRetryBytes is the size of the buffer in which gRPC keeps a call, framing included, to
// send it again. gRPC's default of 256 KiB is smaller than the largest batch of messages.
const maxRetryBytes = MaxGRPCBytes + 64<<10

// serviceConfig lists the retried methods by name. A test compares the list with the services.
//
//go:embed service_config.json
var serviceConfig string

// Client is a connection to one Parley server. It is safe for concurrent use, and a program
// needs only one. Client has its own methods Chat, ResumeTurn and WatchConversations, which hide
// those of the embedded stubs. The generated methods remain available as
// Client.ConversationServiceClient.Chat and so on.
type Client struct {
	parleyv1.ConversationServiceClient
	parleyv1.RecordServiceClient
	parleyv1.InteractionLogServiceClient
	parleyv1.AdminServiceClient

	conn *grpc.ClientConn
}

// Dial returns a client of the server at target: "host:port", "unix:PATH", or any other
// target that gRPC can resolve. Dial does not connect yet. If no server listens at target, the
// first call fails with UNAVAILABLE. Dial returns an error only if target or opts are invalid.
// Call Close when the client is no longer needed.
//
// The connection is plaintext if target is a loopback address, localhost or a Unix socket.
// Otherwise it uses TLS with the system's certificates. opts are applied after the defaults and
// override them: [grpc.WithTransportCredentials] sets other credentials, [grpc.WithUserAgent]
// sets the user agent, [grpc.WithDefaultServiceConfig] sets other retries. [WithToken],
// [WithTokenFile] and [WithTenant] sign in; [TLSFromFiles] returns credentials from files. The limit of a message
// is [MaxGRPCBytes] in each direction. The client tries to reconnect at least every 1.2 s. It pings a connection that
// has been silent for 30 s, and closes it if there is no answer within 10 s.
func Dial(target string, opts ...grpc.DialOption) (*Client, error) {
	defaults := []grpc.DialOption{
		grpc.WithTransportCredentials(defaultCredentials(target)),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithUserAgent("parley-client"),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(MaxGRPCBytes),
			grpc.MaxCallSendMsgSize(MaxGRPCBytes),
			grpc.MaxRetryRPCBufferSize(maxRetryBytes),
		),
		// The server closes connections of clients that ping more often than every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		// Reconnect as quickly as calls are retried. Otherwise all retries would fail on the connection that a restart
		// broke, or after an outage that took longer than they do.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second,
			},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(requestIDUnary, signInAgainUnary),
		grpc.WithChainStreamInterceptor(requestIDStream),
	}
	conn, err := grpc.NewClient(target, append(defaults, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	return &Client{
		ConversationServiceClient:   parleyv1.NewConversationServiceClient(conn),
		RecordServiceClient:         parleyv1.NewRecordServiceClient(conn),
		InteractionLogServiceClient: parleyv1.NewInteractionLogServiceClient(conn),
		AdminServiceClient:          parleyv1.NewAdminServiceClient(conn),
		conn:                        conn,
	}, nil
}

// Close closes the connection. Calls in progress fail with CANCELED. The turns that they started
// continue on the server, unless their requests set ON_DISCONNECT_CANCEL.
func (c *Client) Close() error {
	return c.conn.Close()
}

func defaultCredentials(target string) credentials.TransportCredentials {
	if isLocal(target) {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(nil)
}

// isLocal reports whether target is certainly on this machine. It returns false for targets that
// it cannot parse.
func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	for _, scheme := range []string{"dns:", "passthrough:"} {
		if rest, found := strings.CutPrefix(target, scheme); found {
			target = rest[strings.LastIndex(rest, "/")+1:] // An authority may precede the last slash.
			break
		}
	}
	host, _, err := net.SplitHostPort(target)
	switch {
	case err != nil:
		host = strings.Trim(target, "[]") // There is no port; gRPC uses 443.
	case host == "":
		return true // For gRPC and for package net, ":50051" is this machine.
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}
