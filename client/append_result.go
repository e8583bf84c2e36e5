package client

import (
	"context"

	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// AppendResult is the result of one request. It is safe for concurrent use.
type AppendResult struct {
	request *parleyv1.AppendMessagesRequest // nil after the reply.
	size    int                             // The encoded size of the request.

	done     chan struct{} // Closed when the reply has arrived; the fields below are then final.
	response *parleyv1.AppendMessagesResponse
	err      error
}

// Done returns a channel that is closed when the reply has arrived or the Appender has failed.
func (r *AppendResult) Done() <-chan struct{} { return r.done }

// Wait waits for the reply. It returns the response or error that AppendMessages would return, or the error of the
// Appender; see [Appender.Err]. If ctx ends first, Wait returns its status, and the request continues.
func (r *AppendResult) Wait(ctx context.Context) (*parleyv1.AppendMessagesResponse, error) {
	select {
	case <-r.done:
		return r.response, r.err
	default:
	}
	select {
	case <-r.done:
		return r.response, r.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// set sets the result of the request.
func (r *AppendResult) set(response *parleyv1.AppendMessagesResponse, err error) {
	r.request, r.response, r.err = nil, response, err
	close(r.done)
}
