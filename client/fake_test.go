package client_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// fake is a server over real gRPC. It answers as the test wants and records the calls.
type fake struct {
	parleyv1.UnimplementedConversationServiceServer
	parleyv1.UnimplementedRecordServiceServer

	turn   func(*turnCall) error   // The handler of Chat and ResumeTurn.
	signIn func(metadata.MD) error // If not nil, checks the metadata of each call.
	health *health.Server          // If nil, the server reports no health.
	// The handlers of GetRecords and ListRecords.
	getRecords  func(*parleyv1.GetRecordsRequest) *parleyv1.GetRecordsResponse
	listRecords func(*parleyv1.ListRecordsRequest) *parleyv1.ListRecordsResponse

	mu          sync.Mutex
	unavailable int // The number of calls that fail with UNAVAILABLE before one succeeds.
	calls       []string
	requestIDs  []string
	turns       int
	conns       []net.Conn
}

// turnCall is a call of Chat or ResumeTurn.
type turnCall struct {
	grpc.ServerStream

	nth       int                         // The number of such calls before this one.
	chat      *parleyv1.ChatRequest       // nil for ResumeTurn.
	resume    *parleyv1.ResumeTurnRequest // nil for Chat.
	sendEvent func(*parleyv1.TurnEvent) error
}

// send sends events in order.
func (a *turnCall) send(events ...*parleyv1.TurnEvent) error {
	for _, event := range events {
		if err := a.sendEvent(event); err != nil {
			return err
		}
	}
	return nil
}

// hang waits until the stream breaks or the client leaves.
func (a *turnCall) hang() error {
	<-a.Context().Done()
	return a.Context().Err()
}

// record records a call and its request_id, and returns UNAVAILABLE for the first calls.
func (f *fake) record(method string, request any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method)
	if carrier, ok := request.(interface{ GetRequestId() string }); ok {
		f.requestIDs = append(f.requestIDs, carrier.GetRequestId())
	}
	if len(f.calls) <= f.unavailable {
		return status.Error(codes.Unavailable, "not available yet")
	}
	return nil
}

// checkSignIn returns the error of signIn for a call.
func (f *fake) checkSignIn(ctx context.Context) error {
	if f.signIn == nil {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return f.signIn(md)
}

// recordedCalls returns the methods of all calls and the request ids of those that have one.
func (f *fake) recordedCalls() (calls, requestIDs []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.requestIDs
}

// unary answers each unary call with an empty reply, except those that read records.
func (f *fake) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	if err := errors.Join(f.record(info.FullMethod, request), f.checkSignIn(ctx)); err != nil {
		return nil, err
	}
	switch request := request.(type) {
	case *parleyv1.WriteRecordsRequest:
		return &parleyv1.WriteRecordsResponse{Revision: 1}, nil
	case *parleyv1.GetRecordsRequest:
		return f.getRecords(request), nil
	case *parleyv1.ListRecordsRequest:
		return f.listRecords(request), nil
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
	return f.stream(parleyv1.ConversationService_Chat_FullMethodName, request, &turnCall{
		ServerStream: stream, chat: request, sendEvent: func(event *parleyv1.TurnEvent) error {
			return stream.Send(&parleyv1.ChatResponse{Event: event})
		},
	})
}

// ResumeTurn answers like Chat.
func (f *fake) ResumeTurn(request *parleyv1.ResumeTurnRequest,
	stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse],
) error {
	return f.stream(parleyv1.ConversationService_ResumeTurn_FullMethodName, request, &turnCall{
		ServerStream: stream, resume: request, sendEvent: func(event *parleyv1.TurnEvent) error {
			return stream.Send(&parleyv1.ResumeTurnResponse{Event: event})
		},
	})
}

func (f *fake) stream(method string, request any, a *turnCall) error {
	if err := errors.Join(f.record(method, request), f.checkSignIn(a.Context())); err != nil {
		return err
	}
	f.mu.Lock()
	a.nth = f.turns
	f.turns++
	f.mu.Unlock()
	return f.turn(a)
}

// breakConnections closes all connections of f, those over TCP with a reset.
func (f *fake) breakConnections() {
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

// recordingListener is a listener that records each connection in f.
type recordingListener struct {
	net.Listener
	f *fake
}

func (l recordingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.f.mu.Lock()
		l.f.conns = append(l.f.conns, conn)
		l.f.mu.Unlock()
	}
	return conn, err
}

// dialer opens a connection for a client.
type dialer = func(ctx context.Context, address string) (net.Conn, error)

// dial serves f in memory and returns a client of it. Both end with the test. In a synctest bubble
// this also checks that they leave no goroutine.
func (f *fake) dial(t *testing.T, opts ...grpc.DialOption) *client.Client {
	t.Helper()
	return f.dialThrough(t, func(connect dialer) dialer { return connect }, opts...)
}

// dialThrough is dial with connections that the dialer returned by wrap opens.
func (f *fake) dialThrough(t *testing.T, wrap func(dialer) dialer, opts ...grpc.DialOption) *client.Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	f.serve(t, listener)
	c, err := client.Dial("passthrough:///memory", append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(wrap(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		})))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// serve serves f until the test ends. It enforces the same limit of keepalive pings as the real server.
func (f *fake) serve(t *testing.T, listener net.Listener) {
	t.Helper()
	server := grpc.NewServer(
		grpc.UnaryInterceptor(f.unary),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	parleyv1.RegisterConversationServiceServer(server, f)
	parleyv1.RegisterRecordServiceServer(server, f)
	if f.health != nil {
		healthv1.RegisterHealthServer(server, f.health)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(recordingListener{listener, f}) })
	t.Cleanup(func() { server.Stop(); running.Wait() })
}

// turnFake returns a fake that answers each turn with the events of short. The first calls fail with
// UNAVAILABLE; unavailable is their number.
func turnFake(unavailable int) *fake {
	return &fake{unavailable: unavailable, turn: func(a *turnCall) error { return a.send(short()...) }}
}

// short returns the events of a short turn.
func short() []*parleyv1.TurnEvent {
	return client.Numbered("t", client.Started("c"), client.Text("hi"), client.Finished())
}
