package bench

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/store"
)

// boundName is the name of the service that [benchServer.serveBounds] serves.
const boundName = "bench.Bound"

// withBounds serves the same store on another address. There, calls of AppendMessages, LoadConversation and
// GetRoutingSummary are answered with constants, which are encoded already: these replies, or not_modified if a request
// has a known_version. Otherwise such a call is the same: its request is received, limited and validated, and the
// client decodes the reply. So it is the bound of what the handler of the call can reach.
func (s *benchServer) withBounds(b *testing.B, appended, loaded, summed proto.Message) *benchServer {
	b.Helper()
	unmodified := constant(b, &parleyv1.GetRoutingSummaryResponse{NotModified: true})
	appendReply, loadReply, summaryReply := constant(b, appended), constant(b, loaded), constant(b, summed)
	other := *s
	conn := s.serveBounds(b, parleyv1.ConversationService_ServiceDesc.ServiceName,
		boundMethod("AppendMessages", func(*parleyv1.AppendMessagesRequest) store.Frames { return appendReply }),
		boundMethod("LoadConversation", func(*parleyv1.LoadConversationRequest) store.Frames { return loadReply }),
		boundMethod("GetRoutingSummary", func(r *parleyv1.GetRoutingSummaryRequest) store.Frames {
			if r.KnownVersion != nil {
				return unmodified
			}
			return summaryReply
		}),
	)
	other.conn, other.client = conn.ClientConn, parleyv1.NewConversationServiceClient(conn)
	return &other
}

// serveBounds serves the same store on another address, with these methods in a service of its own. On the connection
// that it returns, a call of a method of the named service is a call of the method with the same name among these.
func (s *benchServer) serveBounds(b *testing.B, service string, methods ...grpc.MethodDesc) boundConn {
	b.Helper()
	other := *s
	other.bounds = &grpc.ServiceDesc{ServiceName: boundName, HandlerType: (*any)(nil), Methods: methods}
	conn := boundConn{other.serve(b, other.newTurns()), make(map[string]string)}
	for _, m := range methods {
		conn.methods["/"+service+"/"+m.MethodName] = boundMethodName(m.MethodName)
	}
	return conn
}

// constant encodes a reply.
func constant(b *testing.B, reply proto.Message) store.Frames {
	b.Helper()
	wire, err := proto.Marshal(reply)
	must(b, err)
	return wire
}

// boundMethod returns a method that answers a request with the encoded reply that answer returns.
func boundMethod[Q any](name string, answer func(*Q) store.Frames) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: wirecodec.Handler(boundMethodName(name),
		func(_ context.Context, r *Q) (*wirecodec.Reply, error) {
			return wirecodec.NewReply(new(emptypb.Empty), answer(r)), nil
		})}
}

func boundMethodName(name string) string { return "/" + boundName + "/" + name }

// boundConn is a connection that calls other methods in place of some.
type boundConn struct {
	*grpc.ClientConn
	methods map[string]string
}

// Invoke makes a call.
func (c boundConn) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	if bound, ok := c.methods[method]; ok {
		method = bound
	}
	return c.ClientConn.Invoke(ctx, method, args, reply, o...)
}
