package a2a

import (
	"testing"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusingStream fails with a status before it receives the request.
type refusingStream struct {
	grpc.ServerStream

	err error
}

// RecvMsg returns the error.
func (s refusingStream) RecvMsg(any) error { return s.err }

// TestStatuses: a status of gRPC is explained, and may be retried, by its code. A reason counts only if it is one of
// the protocol, since a server may add its own.
func TestStatuses(t *testing.T) {
	own := &errdetails.ErrorInfo{Reason: "NOT_HERE", Domain: "elsewhere"}
	unsupported := &errdetails.ErrorInfo{Reason: "UNSUPPORTED_OPERATION", Domain: protocolDomain}
	for _, test := range []struct {
		code      codes.Code
		detail    *errdetails.ErrorInfo
		want      string
		retryable bool
	}{
		{codes.PermissionDenied, own, "the agent refused the key or its use: why", false},
		{codes.Unauthenticated, own, "the agent refused the key: why", false},
		{codes.InvalidArgument, own, "the agent refused the request: why", false},
		{codes.ResourceExhausted, own, "the agent has reached a limit of requests: why", true},
		{codes.Internal, own, "the agent reported an internal error: why", true},
		{codes.Unimplemented, unsupported, "the agent refused the request: why", false},
		{codes.FailedPrecondition, unsupported, "the agent refused the request: why", false},
	} {
		st, err := status.New(test.code, "why").WithDetails(test.detail)
		if err != nil {
			t.Fatal(err)
		}
		s := &service{streaming: true}
		s.wrapStream = func(stream grpc.ServerStream) grpc.ServerStream { return refusingStream{stream, st.Err()} }
		serve(t, sdk.TransportProtocolGRPC, s)
		failure := failureOf(t, newConversation(open(t, s)).ask(t.Context(), userMessage("q")))
		if failure.Message != test.want || failure.Retryable != test.retryable {
			t.Errorf("%s: error %q, retryable %t; want %q, %t", test.code, failure.Message, failure.Retryable, test.want,
				test.retryable)
		}
	}
}
