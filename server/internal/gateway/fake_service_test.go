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

// fakeService is a ConversationService whose methods are set by a test.
type fakeService struct {
	parleyv1.UnimplementedConversationServiceServer
	chat   func(*parleyv1.ChatRequest, grpc.ServerStreamingServer[parleyv1.ChatResponse]) error
	resume func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
	watch  func(*parleyv1.WatchConversationsRequest,
		grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error
	export func(*parleyv1.ExportConversationsRequest,
		grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error
	append              func(context.Context, *parleyv1.AppendMessagesRequest) (*parleyv1.AppendMessagesResponse, error)
	appendStream        func(grpc.BidiStreamingServer[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]) error
	importConversations func(grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error
}

func (s *fakeService) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	return s.chat(r, stream)
}

func (s *fakeService) ResumeTurn(r *parleyv1.ResumeTurnRequest,
	stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse],
) error {
	return s.resume(r, stream)
}

func (s *fakeService) WatchConversations(r *parleyv1.WatchConversationsRequest,
	stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
) error {
	return s.watch(r, stream)
}

func (s *fakeService) ExportConversations(r *parleyv1.ExportConversationsRequest,
	stream grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse],
) error {
	return s.export(r, stream)
}

func (s *fakeService) AppendMessages(
	ctx context.Context, r *parleyv1.AppendMessagesRequest,
) (*parleyv1.AppendMessagesResponse, error) {
	return s.append(ctx, r)
}

func (s *fakeService) AppendStream(
	stream grpc.BidiStreamingServer[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse],
) error {
	return s.appendStream(stream)
}

func (s *fakeService) ImportConversations(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
	return s.importConversations(stream)
}

// memoryClient sends requests to a handler without a network, so that a test can run in a synctest
// bubble.
type memoryClient struct {
	pipes   pipes
	client  *http.Client
	dialled int // Number of connections that client opened.
}

// pipes is a listener of in-memory connections. Unlike those of bufconn, their write deadlines
// expire even if the buffer has space.
type pipes chan net.Conn

// dial returns the client's end of a new connection.
func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p <- server
	return client
}

// Accept returns the server's end of the next connection.
func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close makes Accept return net.ErrClosed.
func (p pipes) Close() error {
	close(p)
	return nil
}

// Addr returns a fixed address.
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// withFakeService runs test in a synctest bubble with a handler that calls s.
func withFakeService(t *testing.T, s *fakeService, test func(t *testing.T, d *memoryClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		service, listener := grpc.NewServer(grpc.WaitForHandlers(true)), bufconn.Listen(64<<10)
		parleyv1.RegisterConversationServiceServer(service, s)
		go func() { _ = service.Serve(listener) }() // until Stop
		conn, err := grpc.NewClient("passthrough:fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		handler, err := New(t.Context(), conn, nil, NewBodies())
		if err != nil {
			t.Fatal(err)
		}
		d := &memoryClient{pipes: make(pipes)}
		server := &http.Server{
			Handler: handler, ErrorLog: slog.NewLogLogger(slog.NewTextHandler(failOnWrite{t}, nil), slog.LevelError),
		}
		go func() { _ = server.Serve(d.pipes) }() // until Close
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			d.dialled++
			return d.pipes.dial(), nil
		}}
		d.client = &http.Client{Transport: transport}
		defer func() {
			transport.CloseIdleConnections()
			server.Close()
			conn.Close()
			service.Stop()
		}()
		test(t, d)
	})
}

// failOnWrite fails the test if an http.Server logs an error.
type failOnWrite struct{ t *testing.T }

func (w failOnWrite) Write(text []byte) (int, error) {
	w.t.Errorf("the HTTP server logged %s", text)
	return len(text), nil
}

// do sends a GET request, or a POST request if body is not empty. Each header is "Name: value".
func (d *memoryClient) do(t *testing.T, path, body string, header ...string) *http.Response {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	// The timers of gRPC let the time of a bubble advance forever, so a test that hangs needs a limit.
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

// fieldValues returns the values of a field of all remaining events.
func fieldValues(t *testing.T, reply *http.Response, field string) []string {
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
