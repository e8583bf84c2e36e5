package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// listen serves f at address until the test ends, and returns the address of the listener.
func listen(t *testing.T, f *fake, network, address string) string {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, listener)
	return listener.Addr().String()
}

func getConversation(ctx context.Context, c *client.Client) error {
	_, err := c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "a"})
	return err
}

func TestDialUsesPlaintextForLocalServers(t *testing.T) {
	socket := t.TempDir() + "/parley.sock"
	listen(t, &fake{}, "unix", socket)
	for _, target := range []string{"unix:" + socket, listen(t, &fake{}, "tcp", "127.0.0.1:0")} {
		c, err := client.Dial(target)
		if err != nil {
			t.Fatal(err)
		}
		if err := getConversation(t.Context(), c); err != nil {
			t.Errorf("%s: %v", target, err)
		}
		c.Close()
	}
}

func TestDialUsesTLSForRemoteServers(t *testing.T) {
	t.Parallel()
	address := listen(t, &fake{}, "tcp", "127.0.0.1:0")
	c, err := client.Dial("passthrough:///parley.example:50051",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := getConversation(t.Context(), c); err == nil || !strings.Contains(err.Error(), "tls:") {
		t.Errorf("error = %v, want a failed TLS handshake", err)
	}
}

func TestDialRefusesInvalidTargets(t *testing.T) {
	c, err := client.Dial("dns://\x7f")
	if err == nil {
		c.Close()
		t.Fatal("Dial succeeded, want an error")
	}
	if !strings.Contains(err.Error(), "dial") {
		t.Errorf("error = %v, want one that contains \"dial\"", err)
	}
}

// TestTooLargeRequests checks that the error of a request over the limit says what to do, and that of the server stays.
func TestTooLargeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := turnFake(0).dial(t)
		records := []*parleyv1.RecordWrite{
			{Key: "a", Value: make([]byte, 3<<20)}, {Key: "b", Value: make([]byte, 3<<20)},
		}
		appended := batch(1, "hello")
		appended.Records = records
		_, appendErr := c.AppendMessages(t.Context(), appended)
		_, writeErr := c.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{Writes: records})
		errs := map[string]error{"AppendMessages": appendErr, "WriteRecords": writeErr}
		for _, err := range c.Chat(t.Context(), &parleyv1.ChatRequest{Content: "hello", Records: records}) {
			errs["Chat"] = err
		}
		for call, err := range errs {
			const size, advice = "the request has 6291", "the limit is 4194304; send fewer or smaller messages and records"
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), size) ||
				!strings.Contains(err.Error(), advice) {
				t.Errorf("%s = %v, want RESOURCE_EXHAUSTED with the size and %q", call, err, advice)
			}
		}
	})
}

// TestKeepaliveDetectsADeadConnection checks that the client detects a dead connection, and that it does
// not ping too often. The server allows one ping every 10 s and closes the connection of a client that
// pings more often.
func TestKeepaliveDetectsADeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(chan *lossyConn, 1)
		c := (&fake{}).dialThrough(t, func(connect dialer) dialer {
			return func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := connect(ctx, address)
				lossy := &lossyConn{Conn: conn, lose: make(chan struct{}), closed: make(chan struct{})}
				select {
				case conns <- lossy:
					return lossy, err
				default:
					return nil, errors.New("the client has lost its first connection")
				}
			}
		})
		for range 3 {
			if err := getConversation(t.Context(), c); err != nil {
				t.Fatalf("GetConversation after an idle time = %v, want no error", err)
			}
			<-time.After(5 * time.Minute)
		}
		begin := time.Now()
		conn := <-conns
		close(conn.lose)
		<-conn.closed
		if took := time.Since(begin); took > 41*time.Second {
			t.Errorf("the dead connection was closed after %v, want at most 30 s + 10 s", took)
		}
	})
}

// lossyConn is a connection that discards everything written to it once lose is closed.
type lossyConn struct {
	net.Conn
	lose, closed chan struct{}
	once         sync.Once
}

func (l *lossyConn) Write(b []byte) (int, error) {
	select {
	case <-l.lose:
		return len(b), nil
	default:
		return l.Conn.Write(b)
	}
}

func (l *lossyConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// TestEnded reads the end of a conversation from errors of a server, and from others.
func TestEnded(t *testing.T) {
	c := dialServer(t)
	get := &parleyv1.GetConversationRequest{ConversationId: "c"}
	_, err := c.GetConversation(t.Context(), get)
	if ending, ok := client.Ended(err); ok {
		t.Errorf("Ended(%v) = %v, want none", err, ending)
	}
	for range 2 {
		if _, err := c.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c"}); err != nil {
			t.Fatal(err)
		}
		_, err = c.GetConversation(t.Context(), get)
		ending, ok := client.Ended(fmt.Errorf("wrapped: %w", err))
		if !ok || ending.Kind != "DELETED" || time.Since(ending.At).Abs() > time.Minute {
			t.Errorf("Ended(%v) = %v, %t, want DELETED just now", err, ending, ok)
		}
	}
	for _, metadata := range []map[string]string{nil, {"ended": "EVICTED"}, {"ended": "EVICTED", "at": "today"}} {
		s, err := status.New(codes.NotFound, "gone").WithDetails(
			&errdetails.ErrorInfo{Reason: "CONVERSATION_NOT_FOUND", Domain: "parley", Metadata: metadata})
		if err != nil {
			t.Fatal(err)
		}
		if ending, ok := client.Ended(s.Err()); ok {
			t.Errorf("Ended with %v = %v, want none", metadata, ending)
		}
	}
	if _, ok := client.Ended(nil); ok {
		t.Error("Ended(nil) = true")
	}
}

func TestReason(t *testing.T) {
	with := func(domain string) error {
		s, err := status.New(codes.NotFound, "no such conversation").WithDetails(
			&errdetails.RetryInfo{}, &errdetails.ErrorInfo{Reason: "CONVERSATION_NOT_FOUND", Domain: domain})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"from the server", with("parley"), "CONVERSATION_NOT_FOUND"},
		{"wrapped", fmt.Errorf("open: %w", with("parley")), "CONVERSATION_NOT_FOUND"},
		{"from a proxy", with("proxy.example"), ""},
		{"a status without details", status.Error(codes.NotFound, ""), ""},
		{"no status", errors.New("plain"), ""},
		{"no error", nil, ""},
	}
	for _, test := range tests {
		if got := client.Reason(test.err); got != test.want {
			t.Errorf("%s: Reason(err) = %q, want %q", test.name, got, test.want)
		}
	}
}
