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

	chat func(*parleyv1.ChatRequest, grpc.ServerStreamingServer[parleyv1.ChatResponse]) error

	mu          sync.Mutex
	unavailable int // Calls that fail before the first one that is answered.
	calls       []string
	requestIDs  []string
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
	if err := f.attempt(parleyv1.ConversationService_Chat_FullMethodName, request); err != nil {
		return err
	}
	return f.chat(request, stream)
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
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); running.Wait() })
}

// send sends events, in order, as a server would.
func send(stream grpc.ServerStreamingServer[parleyv1.ChatResponse], events ...*parleyv1.TurnEvent) error {
	for _, event := range events {
		if err := stream.Send(&parleyv1.ChatResponse{Event: event}); err != nil {
			return err
		}
	}
	return nil
}

func started() *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Index: 1, Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{}}}
}

func text(s string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Index: 2, Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: s}}}
}

func finished() *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Index: 3, Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{
		Turn: &parleyv1.Turn{State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}}}
}
