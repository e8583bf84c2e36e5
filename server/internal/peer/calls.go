package peer

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Reasons of statuses of other servers, see package rpc.
const (
	domain       = "parley"
	busy         = "CONVERSATION_BUSY"
	shuttingDown = "SHUTTING_DOWN"
)

// method is a unary method of the API.
type method[Q, R any] func(parleyv1.ConversationServiceClient, context.Context, *Q, ...grpc.CallOption) (*R, error)

// call calls a method of another server. Errors: ErrUnreachable, StatusError, or the cause of ctx.
func call[Q, R any](ctx context.Context, t *Turns, to store.Server, m method[Q, R], request *Q) (*R, error) {
	client, err := t.unary(ctx, to)
	if err != nil {
		return nil, err
	}
	reply, err := m(client, outgoing(ctx, to), request)
	if err != nil {
		return nil, t.failure(ctx, to, err)
	}
	return reply, nil
}

// failure returns the error of a call of another server.
func (t *Turns) failure(ctx context.Context, to store.Server, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	st := status.Convert(err)
	if reasonOf(st) == "" {
		t.log.WarnContext(ctx, "server cannot be reached", "address", to.Address, "error", err)
		return ErrUnreachable
	}
	return &StatusError{Status: st}
}

// reasonOf returns the reason that a server of Parley gives for a status. It is empty if no such server has made the
// status, for example because the connection has broken.
func reasonOf(st *status.Status) string {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info.GetReason()
		}
	}
	return ""
}

// reasonOfError returns the reason of a StatusError, empty for other errors.
func reasonOfError(err error) string {
	if answered, ok := errors.AsType[*StatusError](err); ok {
		return reasonOf(answered.Status)
	}
	return ""
}

// isBusy reports whether a server has answered that it does not run the turn either.
func isBusy(err error) bool { return reasonOfError(err) == busy }

// isNotFound reports whether a server has answered that it does not know the turn or the conversation.
func isNotFound(err error) bool {
	answered, ok := errors.AsType[*StatusError](err)
	return ok && answered.Status.Code() == codes.NotFound
}
