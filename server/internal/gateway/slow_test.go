package gateway

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// slowConn is a connection from which at most perSecond bytes are read in a second.
type slowConn struct {
	net.Conn
	perSecond int
}

// Read reads the bytes that arrive within 50 ms.
func (l slowConn) Read(p []byte) (int, error) {
	<-time.After(50 * time.Millisecond)
	return l.Conn.Read(p[:min(len(p), l.perSecond/20)])
}

// largeFirst is an agent that answers with one large text and many small ones.
type largeFirst struct{}

// Respond answers any request.
func (largeFirst) Respond(context.Context, *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		text := strings.Repeat("x", 900<<10)
		for range 500 {
			if !yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}, nil) {
				return
			}
			text = text[:1000]
		}
	}
}

// Close does nothing.
func (largeFirst) Close() error { return nil }

// TestSteadyReader: a client that reads large and small replies steadily over a slow connection
// receives all of them. No deadline ends the response.
func TestSteadyReader(t *testing.T) {
	const usual = 20_000 // Bytes per second.
	repeat := func(text string, sizes ...int) (contents []string) {
		for _, size := range sizes {
			contents = append(contents, strings.Repeat(text, size))
		}
		return contents
	}
	const kib = 1 << 10
	for _, test := range []struct {
		name      string
		perSecond int
		contents  []string // Contents of the conversation to export. If nil, Chat with largeFirst is called.
	}{
		{"alike", usual, repeat("x", slices.Repeat([]int{200 * kib}, 12)...)},
		{"large, then small", usual, repeat("x", 2048*kib, 250*kib, 250*kib, 250*kib)},
		{"large, then small, slower", usual / 2, repeat("x", 1024*kib, 250*kib, 250*kib, 250*kib)},
		{"twice as long in JSON", usual, append(repeat(`"`, 1024*kib), repeat("x", 250*kib, 250*kib, 250*kib)...)},
		{"six times as long in JSON", usual, repeat("\x01", slices.Repeat([]int{200 * kib}, 12)...)},
		{"a turn", usual, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := openService(t)
				method, path, body, want := http.MethodPost, "/v1/chat", `{"content": "hello", "agent": "large-first"}`, `"finished"`
				if test.contents != nil {
					importContents(t, over, test.contents)
					method, path, body, want = http.MethodGet, "/v1/export", "", `"content"`
				}
				start := time.Now()
				got := readOver(t, over, test.perSecond, method, path, body)
				if took := time.Since(start); !strings.Contains(got, want) || strings.Contains(got, `"error"`) {
					t.Errorf("%s %s = %d bytes after %v, ending with %.300q", method, path, len(got), took, got[max(0, len(got)-300):])
				} else if took < time.Duration(len(got)/test.perSecond)*time.Second {
					t.Errorf("%d bytes took %v, want a slow connection", len(got), took)
				}
				if n := strings.Count(got, `"content"`); n != len(test.contents) && test.contents != nil {
					t.Errorf("exported %d messages, want %d", n, len(test.contents))
				}
			})
		})
	}
}

// importContents imports a conversation whose messages have these contents.
func importContents(t *testing.T, over grpc.ClientConnInterface, contents []string) {
	t.Helper()
	stream, err := parleyv1.NewConversationServiceClient(over).ImportConversations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := timestamppb.New(time.Now().Add(-time.Minute))
	c := &parleyv1.Conversation{
		Id: "a", Version: 1, LastSequence: int32(len(contents)), CreateTime: at, UpdateTime: at, LastAppendTime: at,
		Retention: &parleyv1.Retention{MaxMessages: 100, Ttl: durationpb.New(24 * time.Hour)},
	}
	for i, content := range contents {
		m := &parleyv1.Message{
			Id: "m", Sequence: int32(i + 1), Role: parleyv1.Role_ROLE_USER, Content: content, CreateTime: at,
		}
		if err := stream.Send(&parleyv1.ImportConversationsRequest{Conversation: c, Messages: []*parleyv1.Message{m}}); err != nil {
			t.Fatal(err)
		}
	}
	if reply, err := stream.CloseAndRecv(); err != nil || reply.GetImportedCount() != 1 {
		t.Fatalf("ImportConversations = %v, %v", reply, err)
	}
}

// readOver returns the body of a response that is read over a slow connection.
func readOver(t *testing.T, over grpc.ClientConnInterface, perSecond int, method, path, body string) string {
	t.Helper()
	handler, err := New(t.Context(), over, nil, NewBodies())
	if err != nil {
		t.Fatal(err)
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
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := listener.DialContext(ctx)
		return slowConn{conn, perSecond}, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://parley"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return string(text)
}
