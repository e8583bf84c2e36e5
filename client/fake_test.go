package client_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// fake answers what the tests ask for, over real gRPC, and writes down what it was asked.
type fake struct {
	parleyv1.UnimplementedConversationServiceServer

	turn func(*asked) error // Answers Chat and ResumeTurn.

	mu          sync.Mutex
	unavailable int // Calls that fail before the first one that is answered.
	calls       []string
	requestIDs  []string
	turns       int
	conns       []net.Conn
}

// asked is a call of Chat or ResumeTurn.
type asked struct {
	grpc.ServerStream

	nth    int                         // Of such calls, from 0.
	chat   *parleyv1.ChatRequest       // nil: it is the other.
	resume *parleyv1.ResumeTurnRequest // The same.
	event  func(*parleyv1.TurnEvent) error
}

// send sends events, in order.
func (a *asked) send(events ...*parleyv1.TurnEvent) error {
	for _, event := range events {
		if err := a.event(event); err != nil {
			return err
		}
	}
	return nil
}

// hang waits until the stream breaks or the client leaves.
func (a *asked) hang() error {
	<-a.Context().Done()
	return a.Context().Err()
}

// attempt notes a call and its request_id.
func (f *fake) attempt(method string, request any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method)
	if carrier, ok := request.(interface{ GetRequestId() string }); ok {
		f.requestIDs = append(f.requestIDs, carrier.GetRequestId())
	}
	if len(f.calls) <= f.unavailable {
		return status.Error(codes.Unavailable, "away for a moment")
	}
	return nil
}

func (f *fake) seen() (calls, requestIDs []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.requestIDs
}

// unary answers each unary call with an empty reply.
func (f *fake) unary(_ context.Context, request any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	if err := f.attempt(info.FullMethod, request); err != nil {
		return nil, err
	}
	switch info.FullMethod {
	case parleyv1.ConversationService_CreateConversation_FullMethodName:
		return &parleyv1.CreateConversationResponse{}, nil
	case parleyv1.ConversationService_LoadConversation_FullMethodName:
		return &parleyv1.LoadConversationResponse{}, nil
	case parleyv1.ConversationService_ForkConversation_FullMethodName:
		return &parleyv1.ForkConversationResponse{}, nil
	case parleyv1.ConversationService_AppendMessages_FullMethodName:
		return &parleyv1.AppendMessagesResponse{}, nil
	case parleyv1.ConversationService_GetConversation_FullMethodName:
		return &parleyv1.GetConversationResponse{}, nil
	case parleyv1.ConversationService_DeleteConversation_FullMethodName:
		return &parleyv1.DeleteConversationResponse{}, nil
	default:
		return nil, status.Error(codes.Unimplemented, info.FullMethod)
	}
}

func (f *fake) Chat(request *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	return f.stream(parleyv1.ConversationService_Chat_FullMethodName, request, &asked{
		ServerStream: stream, chat: request, event: func(event *parleyv1.TurnEvent) error {
			return stream.Send(&parleyv1.ChatResponse{Event: event})
		},
	})
}

// ResumeTurn is answered as Chat is.
func (f *fake) ResumeTurn(request *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
	return f.stream(parleyv1.ConversationService_ResumeTurn_FullMethodName, request, &asked{
		ServerStream: stream, resume: request, event: func(event *parleyv1.TurnEvent) error {
			return stream.Send(&parleyv1.ResumeTurnResponse{Event: event})
		},
	})
}

func (f *fake) stream(method string, request any, a *asked) error {
	if err := f.attempt(method, request); err != nil {
		return err
	}
	f.mu.Lock()
	a.nth = f.turns
	f.turns++
	f.mu.Unlock()
	return f.turn(a)
}

// cut breaks the connections to the fake: with a reset, where they have such.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
	}
	f.conns = nil
}

// wire is a listener that tells its fake of each connection.
type wire struct {
	net.Listener
	f *fake
}

func (w wire) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err == nil {
		w.f.mu.Lock()
		w.f.conns = append(w.f.conns, conn)
		w.f.mu.Unlock()
	}
	return conn, err
}

// dialer opens connections for a client.
type dialer = func(ctx context.Context, address string) (net.Conn, error)

// dial serves f in memory and returns a client of it. Both end with the test; in a bubble of
// synctest, that checks that they leave no goroutine.
func (f *fake) dial(t *testing.T) *client.Client {
	t.Helper()
	return f.dialThrough(t, func(connect dialer) dialer { return connect })
}

// dialThrough is dial with a say in how connections are opened.
func (f *fake) dialThrough(t *testing.T, through func(dialer) dialer) *client.Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	f.serve(t, listener)
	c, err := client.Dial("passthrough:///memory",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(through(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// serve serves f until the test ends, with the server's own rule for keepalive pings.
func (f *fake) serve(t *testing.T, listener net.Listener) {
	t.Helper()
	server := grpc.NewServer(
		grpc.UnaryInterceptor(f.unary),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	parleyv1.RegisterConversationServiceServer(server, f)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(wire{listener, f}) })
	t.Cleanup(func() { server.Stop(); running.Wait() })
}

// answering gives everybody the same answer, after so many failures.
func answering(unavailable int) *fake {
	return &fake{unavailable: unavailable, turn: func(a *asked) error { return a.send(short()...) }}
}

// short is a turn of few events.
func short() []*parleyv1.TurnEvent {
	return client.Numbered("t", client.Started("c"), client.Text("hi"), client.Finished())
}
