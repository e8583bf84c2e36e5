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

// listen serves f at address until the test ends and returns where.
func listen(t *testing.T, f *fake, network, address string) string {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, listener)
	return listener.Addr().String()
}

func get(ctx context.Context, c *client.Client) error {
	_, err := c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "a"})
	return err
}

func TestLocalServersArePlaintext(t *testing.T) {
	socket := t.TempDir() + "/parley.sock"
	listen(t, &fake{}, "unix", socket)
	for _, target := range []string{"unix:" + socket, listen(t, &fake{}, "tcp", "127.0.0.1:0")} {
		c, err := client.Dial(target)
		if err != nil {
			t.Fatal(err)
		}
		if err := get(t.Context(), c); err != nil {
			t.Errorf("%s: %v", target, err)
		}
		c.Close()
	}
}

func TestOtherServersMustSpeakTLS(t *testing.T) {
	address := listen(t, &fake{}, "tcp", "127.0.0.1:0")
	c, err := client.Dial("passthrough:///parley.example:50051",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := get(t.Context(), c); err == nil || !strings.Contains(err.Error(), "tls:") {
		t.Errorf("error = %v, want a failed handshake", err)
	}
}

func TestDialRefusesNonsense(t *testing.T) {
	c, err := client.Dial("dns://\x7f")
	if err == nil {
		c.Close()
		t.Fatal("dialled it")
	}
	if !strings.Contains(err.Error(), "dial") {
		t.Errorf("error = %v, want it to say what was dialled", err)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := answering(0)
		_, err := f.dial(t).AppendMessages(t.Context(), batch(1, strings.Repeat("x", 4<<20)))
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "trying to send") {
			t.Errorf("error = %v, want RESOURCE_EXHAUSTED before anything is sent", err)
		}
	})
}

// The server allows a ping every 10 s; a client that asks more often loses its connection.
func TestKeepaliveFindsADeadLineAndPleasesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := make(chan *line, 1)
		c := (&fake{}).dialThrough(t, func(connect dialer) dialer {
			return func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := connect(ctx, address)
				line := &line{Conn: conn, cut: make(chan struct{}), closed: make(chan struct{})}
				select {
				case lines <- line:
					return line, err
				default:
					return nil, errors.New("the first line was lost")
				}
			}
		})
		for range 3 {
			if err := get(t.Context(), c); err != nil {
				t.Fatalf("on a line that was idle: %v", err)
			}
			<-time.After(5 * time.Minute)
		}
		begin := time.Now()
		line := <-lines
		close(line.cut)
		<-line.closed
		if took := time.Since(begin); took > 41*time.Second {
			t.Errorf("a dead line was given up after %v, want 30 s + 10 s at most", took)
		}
	})
}

// line is a connection that loses whatever is written to it once cut is closed.
type line struct {
	net.Conn
	cut, closed chan struct{}
	once        sync.Once
}

func (l *line) Write(b []byte) (int, error) {
	select {
	case <-l.cut:
		return len(b), nil
	default:
		return l.Conn.Write(b)
	}
}

func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
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
		{"of the server", with("parley"), "CONVERSATION_NOT_FOUND"},
		{"wrapped", fmt.Errorf("open: %w", with("parley")), "CONVERSATION_NOT_FOUND"},
		{"of somebody in between", with("proxy.example"), ""},
		{"a bare status", status.Error(codes.NotFound, ""), ""},
		{"no status", errors.New("plain"), ""},
		{"no error", nil, ""},
	}
	for _, test := range tests {
		if got := client.Reason(test.err); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
