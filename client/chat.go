package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Chat sends request when it is ranged over and yields the events of the turn as they come:
// started once the user's message is durable, then the pieces of the answer, and last
// finished once the answer is durable. Whatever became of the turn, failed included, is in
// finished; it is not an error.
//
// An error is yielded once, at the end, with a nil event: the call was refused, or the stream
// broke. It is a gRPC status, see [Reason], or [io.ErrUnexpectedEOF] where the server
// ended the stream without finished.
//
// Leaving the loop, or the end of ctx, ends the stream. The turn goes on at the server unless
// request.on_disconnect is ON_DISCONNECT_CANCEL. To range again is to ask again with
// the same request_id: the same turn, never a second one.
func (c *Client) Chat(ctx context.Context, request *parleyv1.ChatRequest, opts ...grpc.CallOption) iter.Seq2[*parleyv1.TurnEvent, error] {
	filled := withRequestID(request)
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.ConversationServiceClient.Chat(ctx, filled, opts...)
		if err != nil {
			yield(nil, err)
			return
		}
		for finished := false; ; {
			response, err := stream.Recv()
			switch {
			case finished && err != nil:
				return // The turn is over and durable; how the line closed changes nothing.
			case errors.Is(err, io.EOF):
				yield(nil, fmt.Errorf("chat: the stream ended before the turn: %w", io.ErrUnexpectedEOF))
				return
			case err != nil:
				yield(nil, err)
				return
			}
			event := response.GetEvent()
			finished = event.GetFinished() != nil
			if !yield(event, nil) {
				return
			}
		}
	}
}
