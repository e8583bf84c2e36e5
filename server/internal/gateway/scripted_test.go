package gateway

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// scripted is a service that says what a test has it say.
type scripted struct {
	parleyv1.UnimplementedConversationServiceServer
	chat   func(*parleyv1.ChatRequest, grpc.ServerStreamingServer[parleyv1.ChatResponse]) error
	resume func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
	watch  func(*parleyv1.WatchConversationsRequest, grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error
	export func(*parleyv1.ExportConversationsRequest, grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error
	append func(context.Context, *parleyv1.AppendMessagesRequest) (*parleyv1.AppendMessagesResponse, error)
	take   func(grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error
}

func (s *scripted) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	return s.chat(r, stream)
}

func (s *scripted) ResumeTurn(r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
	return s.resume(r, stream)
}

func (s *scripted) WatchConversations(r *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
	return s.watch(r, stream)
}

func (s *scripted) ExportConversations(r *parleyv1.ExportConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error {
	return s.export(r, stream)
}

func (s *scripted) AppendMessages(ctx context.Context, r *parleyv1.AppendMessagesRequest) (*parleyv1.AppendMessagesResponse, error) {
	return s.append(ctx, r)
}

func (s *scripted) ImportConversations(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
	return s.take(stream)
}

// inMemory is a door ahead of a scripted service without a network, so that its time is that
// of a bubble.
type inMemory struct {
	pipes   pipes
	client  *http.Client
	dialled int // connections of client
}

// pipes are the connections to a door. Unlike those of bufconn they know their deadlines
// when there is room.
type pipes chan net.Conn

func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p <- server
	return client
}

// Accept waits for the next connection.
func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close ends Accept.
func (p pipes) Close() error {
	close(p)
	return nil
}

// Addr is of no use.
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// inBubble runs a test with a door of its own in a bubble.
func inBubble(t *testing.T, s *scripted, test func(t *testing.T, d *inMemory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		service, under := grpc.NewServer(grpc.WaitForHandlers(true)), bufconn.Listen(64<<10)
		parleyv1.RegisterConversationServiceServer(service, s)
		go func() { _ = service.Serve(under) }() // until Stop
		conn, err := grpc.NewClient("passthrough:scripted", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return under.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		handler, err := New(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		d := &inMemory{pipes: make(pipes)}
		door := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.NewTextHandler(complaints{t}, nil), slog.LevelError)}
		go func() { _ = door.Serve(d.pipes) }() // until Close
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			d.dialled++
			return d.pipes.dial(), nil
		}}
		d.client = &http.Client{Transport: transport}
		defer func() {
			transport.CloseIdleConnections()
			door.Close()
			conn.Close()
			service.Stop()
		}()
		test(t, d)
	})
}

// complaints are what an http.Server has to say about its handler.
type complaints struct{ t *testing.T }

func (c complaints) Write(text []byte) (int, error) {
	c.t.Errorf("the server says %s", text)
	return len(text), nil
}

// ask sends a request, whose header lines are "Name: value", and a body if there is one.
func (d *inMemory) ask(t *testing.T, path, body string, header ...string) *http.Response {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	// In a bubble time goes on as long as there is a timer, and gRPC has some: a test that
	// hangs would go on to the end of time.
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	reply, err := d.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reply.Body.Close() })
	return reply
}

// fieldsOf are the values of a field of all events that are left.
func fieldsOf(t *testing.T, reply *http.Response, field string) []string {
	t.Helper()
	var values []string
	lines := bufio.NewScanner(reply.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), field+": "); ok {
			values = append(values, value)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return values
}

const wantsEvents = "Accept: text/event-stream"
