package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// slowLine is a connection that carries 20,000 bytes a second to its reader.
type slowLine struct{ net.Conn }

// Read reads what arrives within 50 ms.
func (l slowLine) Read(p []byte) (int, error) {
	<-time.After(50 * time.Millisecond)
	return l.Conn.Read(p[:min(len(p), 1000)])
}

// TestSteadyReader exports large messages over a slow line, without a pause: neither the
// write deadlines here nor the limits of the stream behind them end that.
func TestSteadyReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages, size = 12, 200 << 10
		over := openService(t)
		handler, err := New(t.Context(), over)
		if err != nil {
			t.Fatal(err)
		}
		for range messages {
			_, err := parleyv1.NewConversationServiceClient(over).AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
				ConversationId: "a", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", size)}},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		listener, server := bufconn.Listen(8<<10), &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("Serve: %v", err)
			}
		})
		defer func() {
			_ = server.Close()
			serving.Wait()
		}()
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := listener.DialContext(ctx)
			return slowLine{conn}, err
		}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://parley/v1/export", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		reply, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if n := strings.Count(string(body), `"content"`); err != nil || n != messages || len(body) < messages*size {
			t.Errorf("GET /v1/export = %d messages, %d bytes after %v, %v; ends with %.300q", n, len(body), time.Since(start), err, body[max(0, len(body)-300):])
		}
		if took := time.Since(start); took < time.Duration(len(body)/20_000)*time.Second {
			t.Errorf("%d bytes took %v: the line is not slow", len(body), took)
		}
	})
}
