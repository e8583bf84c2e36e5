package a2a

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is the maximum wait of a test. Only a failing test waits that long.
const testTimeout = time.Minute

const testKey = "sk-secret-key"

// bindings are those of the protocol.
var bindings = []sdk.TransportProtocol{
	sdk.TransportProtocolJSONRPC, sdk.TransportProtocolHTTPJSON, sdk.TransportProtocolGRPC,
}

// execute answers one message; yield sends an event.
type execute func(ctx context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error

// service is a remote agent: the server of the official library. Each message is answered by the next script.
type service struct {
	scripts   []execute
	url       string
	streaming bool
	secure    bool                 // with TLS
	change    func(*sdk.AgentCard) // changes the card
	http      *httptest.Server
	grpc      *grpc.Server

	life context.Context //nolint:containedctx // It ends with the test, as the context of a server does.

	mu       sync.Mutex
	received []*sdk.Message
	keys     []string // "authorization" of all calls
	card     sdk.AgentCard
	onCancel chan sdk.TaskID

	wrap       func(http.Handler) http.Handler
	wrapStream func(grpc.ServerStream) grpc.ServerStream
}

// Execute runs the next script.
func (s *service) Execute(ctx context.Context, on *a2asrv.ExecutorContext) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		s.mu.Lock()
		s.received = append(s.received, on.Message)
		n := len(s.received)
		s.mu.Unlock()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(s.life, cancel)
		defer stop()
		if n > len(s.scripts) {
			yield(nil, fmt.Errorf("%d messages, want %d", n, len(s.scripts)))
			return
		}
		if err := s.scripts[n-1](ctx, on, func(e sdk.Event) bool { return yield(e, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

// Cancel cancels a task.
func (s *service) Cancel(_ context.Context, on *a2asrv.ExecutorContext) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCanceled, nil), nil)
		s.onCancel <- on.TaskID
	}
}

// messages returns what the remote agent has received.
func (s *service) messages() []*sdk.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

// seen records the key of a call.
func (s *service) seen(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append(s.keys, key)
}

// serve serves a remote agent over one binding, until the end of the test.
func serve(t *testing.T, binding sdk.TransportProtocol, s *service) *service {
	t.Helper()
	s.onCancel = make(chan sdk.TaskID, 16)
	s.life = t.Context()
	s.card = sdk.AgentCard{Name: "helper", Capabilities: sdk.AgentCapabilities{Streaming: s.streaming}}
	handler := a2asrv.NewHandler(s, a2asrv.WithCapabilityChecks(&s.card.Capabilities),
		a2asrv.WithLogger(slog.New(slog.DiscardHandler)))
	routes := http.NewServeMux()
	routes.HandleFunc("/.well-known/agent-card.json", func(w http.ResponseWriter, r *http.Request) {
		card := s.card
		if s.change != nil {
			s.change(&card)
		}
		a2asrv.NewStaticAgentCardHandler(&card).ServeHTTP(w, r)
	})
	routes.Handle("/rpc", a2asrv.NewJSONRPCHandler(handler))
	routes.Handle("/rest/", http.StripPrefix("/rest", a2asrv.NewRESTHandler(handler)))
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.seen(r.Header.Get("Authorization"))
		if s.wrap != nil {
			s.wrap(routes).ServeHTTP(w, r)
		} else {
			routes.ServeHTTP(w, r)
		}
	}))
	if s.secure {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	s.url = s.http.URL
	address := s.http.URL + "/rpc"
	switch binding {
	case sdk.TransportProtocolHTTPJSON:
		address = s.http.URL + "/rest"
	case sdk.TransportProtocolGRPC:
		address = s.serveGRPC(t, handler)
	}
	s.card.SupportedInterfaces = []*sdk.AgentInterface{sdk.NewAgentInterface(address, binding)}
	return s
}

// serveGRPC returns the address.
func (s *service) serveGRPC(t *testing.T, handler a2asrv.RequestHandler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	record := func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		s.seen(strings.Join(md.Get("authorization"), ","))
	}
	security := insecure.NewCredentials()
	if s.secure {
		security = credentials.NewServerTLSFromCert(&s.http.TLS.Certificates[0])
	}
	s.grpc = grpc.NewServer(grpc.Creds(security),
		grpc.UnaryInterceptor(func(
			ctx context.Context, request any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler,
		) (any, error) {
			record(ctx)
			return h(ctx, request)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			record(stream.Context())
			if s.wrapStream != nil {
				stream = s.wrapStream(stream)
			}
			return h(srv, stream)
		}))
	a2agrpc.NewHandler(handler).RegisterWith(s.grpc)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.grpc.Serve(listener) // It ends when the server is stopped.
	}()
	t.Cleanup(func() {
		s.grpc.Stop()
		<-served
	})
	return listener.Addr().String()
}

// open returns the agent for a remote agent. It is closed at the end of the test.
func open(t *testing.T, s *service) *Agent {
	t.Helper()
	return openWith(t, Config{URL: s.url, Key: testKey})
}

func openWith(t *testing.T, config Config) *Agent {
	t.Helper()
	a, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return a
}

// conversation is what the server keeps: the messages and the record.
type conversation struct {
	agent    *Agent
	uid      string
	messages []*parleyv1.Message
	record   *parleyv1.Record
	turns    int
}

func newConversation(a *Agent) *conversation { return &conversation{agent: a, uid: "uid-1"} }

// turn is what an agent has sent.
type turn struct {
	text     string
	progress []string
	data     []*parleyv1.StructuredData
	calls    []*parleyv1.ToolCall
	err      error
}

func userMessage(text string) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: text}
}

func resultMessage(id, content string) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{
		CallId: id, Name: "look_up", Content: content,
	}}
}

// ask runs a turn with these messages, and stores its answer and its record like the server.
func (c *conversation) ask(ctx context.Context, messages ...*parleyv1.Message) turn {
	return c.askPieces(ctx, nil, messages...)
}

// askPieces is ask, and calls each for each piece until it returns false.
func (c *conversation) askPieces(
	ctx context.Context, each func(*parleyv1.RespondResponse) bool, messages ...*parleyv1.Message,
) turn {
	c.messages = append(c.messages, messages...)
	c.turns++
	request := &parleyv1.RespondRequest{
		Conversation: &parleyv1.Conversation{Id: "c", Uid: c.uid, MessageCount: int32(len(c.messages))},
		Messages:     c.messages, Agent: "helper", TurnId: fmt.Sprint("turn-", c.turns),
	}
	var got turn
	var record *parleyv1.RecordWrite
	for piece, err := range c.agent.Respond(agent.WithRecord(ctx, c.record), request) {
		switch {
		case err != nil:
			got.err = err
		case piece.GetStructuredData() != nil:
			got.data = append(got.data, piece.GetStructuredData())
		case piece.GetToolCall() != nil:
			got.calls = append(got.calls, piece.GetToolCall())
		case piece.GetProgress() != nil:
			got.progress = append(got.progress, piece.GetProgress().GetText())
		case piece.GetRecord() != nil:
			record = piece.GetRecord()
		}
		got.text += piece.GetText()
		if each != nil && !each(piece) {
			return got
		}
	}
	if got.err == nil {
		c.messages = append(c.messages, &parleyv1.Message{
			Role: parleyv1.Role_ROLE_ASSISTANT, Content: got.text, ToolCalls: got.calls,
		})
		if record != nil {
			c.record = &parleyv1.Record{Key: record.GetKey(), Value: record.GetValue()}
		}
	}
	return got
}

// variant is a remote agent with a binding, with or without streams.
type variant struct {
	binding   sdk.TransportProtocol
	streaming bool
}

// variants returns all of them by name.
func variants() map[string]variant {
	all := make(map[string]variant)
	for _, binding := range bindings {
		for _, streaming := range []bool{true, false} {
			all[fmt.Sprintf("%s streaming=%t", binding, streaming)] = variant{binding, streaming}
		}
	}
	return all
}

// failureOf returns the error of a turn as an *agent.Error.
func failureOf(t *testing.T, got turn) *agent.Error {
	t.Helper()
	failure, ok := got.err.(*agent.Error) //nolint:errorlint // It must not be wrapped.
	if !ok {
		t.Fatalf("Respond = %+v, want an *agent.Error", got)
	}
	if strings.Contains(failure.Message+failure.Detail, testKey) {
		t.Errorf("error %q, %q contains the key", failure.Message, failure.Detail)
	}
	return failure
}

func agentMessage(parts ...*sdk.Part) *sdk.Message {
	return sdk.NewMessage(sdk.MessageRoleAgent, parts...)
}

func textPart(s string) *sdk.Part { return sdk.NewTextPart(s) }

// parleyMessage is a message of a conversation.
type parleyMessage = parleyv1.Message

func recordOf(value string) *parleyv1.Record { return &parleyv1.Record{Value: []byte(value)} }

func requestOf(c *conversation) *parleyv1.RespondRequest {
	return &parleyv1.RespondRequest{
		Conversation: &parleyv1.Conversation{Uid: c.uid, MessageCount: int32(len(c.messages))}, Messages: c.messages,
	}
}
