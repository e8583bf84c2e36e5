package a2a

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/server/internal/tracing"
)

// maxConns is the maximum number of gRPC servers that the cards of one agent may name.
const maxConns = 8

// grpcTransport returns a transport over gRPC. Connections to the same address are shared. The caller holds a.lock.
func (a *Agent) grpcTransport(
	_ context.Context, _ *sdk.AgentCard, at *sdk.AgentInterface,
) (a2aclient.Transport, error) {
	place, err := placeOf(at, a.card.Scheme == schemeHTTPS)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprint(place.address, place.secure)
	conn := a.conns[key]
	if conn == nil {
		if len(a.conns) == maxConns {
			return nil, fmt.Errorf("the cards have named more than %d gRPC servers", maxConns)
		}
		security := insecure.NewCredentials()
		if place.secure {
			security = credentials.NewTLS(a.tls.Clone())
		}
		conn, err = grpc.NewClient("dns:///"+place.address,
			grpc.WithTransportCredentials(security),
			grpc.WithDisableServiceConfig(), // A service config from DNS could enable retries.
			grpc.WithUserAgent("parley"),
			grpc.WithMaxHeaderListSize(64<<10),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
			grpc.WithUnaryInterceptor(a.unary),
			grpc.WithStreamInterceptor(a.stream),
		)
		if err != nil {
			return nil, err
		}
		a.conns[key] = conn
	}
	return a2agrpc.NewGRPCTransportFromClient(a2apb.NewA2AServiceClient(conn)), nil
}

// callError is the status of a gRPC call that is the same in all protocols. Unlike a status, the library passes it on.
type callError struct {
	code codes.Code
	text string
}

// Error returns the text of the status.
func (e *callError) Error() string { return e.text }

// protocolDomain is the domain of the reasons of the protocol.
const protocolDomain = "a2a-protocol.org"

// convert returns a *callError for a status that does not come from the A2A service. Other errors have only the details
// of the protocol: the library takes a reason of any domain for one of the protocol, and an unknown one for a failure.
func convert(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == protocolDomain {
			return current(s, info)
		}
	}
	switch s.Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.Unauthenticated, codes.PermissionDenied, codes.Unknown,
		codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
		return &callError{s.Code(), s.Message()}
	}
	return status.Error(s.Code(), s.Message())
}

// current returns an error of the protocol with the code that it has in the current version of the protocol. In A2A
// 1.0.0, the code of unsupported operations was UNIMPLEMENTED, which the library takes for an internal error.
func current(s *status.Status, info *errdetails.ErrorInfo) error {
	if s.Code() != codes.Unimplemented || info.GetReason() == "METHOD_NOT_FOUND" {
		return s.Err()
	}
	changed := s.Proto()
	changed.Code = int32(codes.FailedPrecondition)
	return status.FromProto(changed).Err()
}

func (a *Agent) outgoing(ctx context.Context) context.Context {
	pairs := make([]string, 0, 2*len(a.headers))
	for name, value := range a.headers {
		pairs = append(pairs, name, value)
	}
	tracing.Inject(ctx, func(name, value string) { pairs = append(pairs, strings.ToLower(name), value) })
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

func (a *Agent) unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	return convert(invoke(a.outgoing(ctx), method, request, reply, conn, options...))
}

func (a *Agent) stream(
	ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(a.outgoing(ctx), description, conn, method, options...)
	if err != nil {
		return nil, convert(err)
	}
	return convertedStream{stream}, nil
}

// convertedStream is a stream whose errors are converted.
type convertedStream struct{ grpc.ClientStream }

// RecvMsg receives the next message.
func (s convertedStream) RecvMsg(m any) error { return convert(s.ClientStream.RecvMsg(m)) }
