package a2a

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
	"github.com/parleyhq/parley/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bindings are the transports that the agent cards name.
func bindings() []a2a.TransportProtocol {
	return []a2a.TransportProtocol{
		a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC,
	}
}

// puppet is an agent that does what a test says. Each call of Respond takes the next script.
type puppet struct{ scripts chan script }

// script is what an agent yields. It returns an error if the agent fails.
type script func(ctx context.Context, r *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool) error

// Respond runs the next script.
func (p *puppet) Respond(
	ctx context.Context, r *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		select {
		case run := <-p.scripts:
			if err := run(ctx, r, func(piece *parleyv1.RespondResponse) bool { return yield(piece, nil) }); err != nil {
				yield(nil, err)
			}
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
		}
	}
}

// Close does nothing.
func (p *puppet) Close() error { return nil }

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

func toolCallPiece(id, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: id, Name: "search", Arguments: arguments},
	}}
}

// says returns a script that yields pieces.
func says(pieces ...*parleyv1.RespondResponse) script {
	return func(_ context.Context, _ *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool) error {
		for _, piece := range pieces {
			if !say(piece) {
				return nil
			}
		}
		return nil
	}
}

// fixture is the handler over HTTP in front of a service on memstore with the agents echo and puppet.
type fixture struct {
	url      string
	api      parleyv1.ConversationServiceClient
	puppet   *puppet
	notifier *Notifier
	conn     grpc.ClientConnInterface
	direct   *rpc.Direct
	store    *memstore.Store

	grpcAddress string
}

// newFixture returns a fixture whose callers need no credential.
func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	return newFixtureWith(tb, nil)
}

func newFixtureWith(tb testing.TB, a *auth.Authenticator) *fixture {
	tb.Helper()
	f := &fixture{puppet: &puppet{scripts: make(chan script, 10)}}
	service := rpctest.Open(tb, rpctest.Options{
		Agents: []agent.Entry{{Name: "puppet", Kind: "test", Agent: f.puppet}},
		Change: func(o *rpc.Options) { o.Auth = a },
	})
	f.conn, f.direct, f.store = service.Conn, service.Direct, service.Store
	f.api = parleyv1.NewConversationServiceClient(service.Conn)
	o := Options{
		Conn: service.Direct, Authorize: service.Authorize, Bodies: gateway.NewBodies(), Version: "1.2.3", NeedsSignIn: a != nil,
		SignIn: service.SignIn,
		Agents: func() []*parleyv1.AgentInfo {
			return []*parleyv1.AgentInfo{
				{Name: "echo", Kind: "echo", IsDefault: true, Description: "repeats what it is told"}, {Name: "puppet", Kind: "test"},
			}
		},
	}
	o.Notifier = NewNotifier(tb.Context(), NotifierOptions{Options: o, Private: true, Log: slog.New(slog.DiscardHandler)})
	o.Notifier.delay = time.Millisecond
	tb.Cleanup(func() { o.Notifier.Close(tb.Context()) })
	f.notifier = o.Notifier
	o.GRPCPort = serveGRPC(tb, service.Server, o)
	f.grpcAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(o.GRPCPort))
	s := httptest.NewServer(New(o))
	tb.Cleanup(s.Close)
	tb.Cleanup(http.DefaultClient.CloseIdleConnections)
	f.url = s.URL
	return f
}

// serveGRPC serves the protocol and the API over gRPC and returns the port.
func serveGRPC(tb testing.TB, service *rpc.Server, o Options) int {
	tb.Helper()
	g := grpc.NewServer(append(service.ServerOptions(), grpc.WaitForHandlers(true))...)
	Register(service.Registrar(g), o)
	service.Register(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	tb.Cleanup(func() {
		g.Stop()
		serving.Wait()
	})
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		tb.Fatalf("%v is no address of TCP", l.Addr())
	}
	return at.Port
}

// client returns a client of an agent over a transport, made from the agent's card.
func (f *fixture) client(tb testing.TB, name string, over a2a.TransportProtocol) *a2aclient.Client {
	tb.Helper()
	card, err := agentcard.DefaultResolver.Resolve(tb.Context(), f.url+Path+name)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := a2aclient.NewFromCard(tb.Context(), card,
		a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{over}}),
		a2agrpc.WithGRPCTransport(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Destroy() })
	return c
}

// over runs a test over each transport, with a fixture and a client of the puppet.
func over(t *testing.T, test func(t *testing.T, f *fixture, c *a2aclient.Client)) {
	t.Helper()
	for _, binding := range bindings() {
		t.Run(string(binding), func(t *testing.T) {
			f := newFixture(t)
			test(t, f, f.client(t, "puppet", binding))
		})
	}
}

// send sends a text and returns the task.
func send(t *testing.T, c *a2aclient.Client, m *a2a.Message) *a2a.Task {
	t.Helper()
	result, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: m})
	if err != nil {
		t.Fatal(err)
	}
	task, ok := result.(*a2a.Task)
	if !ok {
		t.Fatalf("SendMessage = %T, want a task", result)
	}
	return task
}

// question returns a message with a text in a context.
func question(contextID, content string) *a2a.Message {
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(content))
	m.ContextID = contextID
	return m
}

// texts returns the texts of parts, one after the other.
func texts(parts a2a.ContentParts) string {
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(part.Text())
	}
	return b.String()
}

// artifacts returns the text of each artifact of a task.
func artifacts(task *a2a.Task) []string {
	var all []string
	for _, a := range task.Artifacts {
		all = append(all, texts(a.Parts))
	}
	return all
}

// collected is a task as a client has it after the events of a stream.
type collected struct {
	task   *a2a.Task
	states []a2a.TaskState
	texts  map[a2a.ArtifactID]string
	notes  []string
	closed int // artifacts whose last chunk has come
}

// collect reads a stream to its end.
func collect(t *testing.T, events iter.Seq2[a2a.Event, error]) *collected {
	t.Helper()
	c := &collected{texts: make(map[a2a.ArtifactID]string)}
	for event, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		c.add(t, event)
	}
	return c
}

// add applies an event.
func (c *collected) add(t *testing.T, event a2a.Event) {
	t.Helper()
	if c.task == nil {
		task, ok := event.(*a2a.Task)
		if !ok {
			t.Fatalf("first event is a %T, want the task", event)
		}
		c.task, c.states = task, append(c.states, task.Status.State)
		return
	}
	if info := event.TaskInfo(); info.TaskID != c.task.ID || info.ContextID != c.task.ContextID {
		t.Errorf("event of %v in the stream of %v", info, c.task.TaskInfo())
	}
	switch e := event.(type) {
	case *a2a.TaskArtifactUpdateEvent:
		id := e.Artifact.ID
		if _, begun := c.texts[id]; begun != e.Append {
			t.Errorf("artifact %s: append = %t, begun = %t", id, e.Append, begun)
		}
		if !e.Append {
			c.texts[id] = ""
		}
		c.texts[id] += texts(e.Artifact.Parts)
		if e.LastChunk {
			c.closed++
		}
	case *a2a.TaskStatusUpdateEvent:
		c.states = append(c.states, e.Status.State)
		c.task.Status = e.Status
		if e.Status.Message != nil && e.Status.State == a2a.TaskStateWorking {
			c.notes = append(c.notes, texts(e.Status.Message.Parts))
		}
	default:
		t.Errorf("event %T after the task", event)
	}
}

// request sends a request and returns the status, the header and the body of the response.
func (f *fixture) request(t *testing.T, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range header {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(read)
}
