package client

import (
	"context"
	"iter"
	"sync/atomic"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Chat returns the events of a turn. It sends request when the caller ranges over the sequence.
// The first events are queued, while the turn waits for other turns, and started, once the user's
// message is durable. The pieces of the answer follow. The last event is finished, once the
// answer is durable. Finished contains the turn's final state. A failed turn is not an error.
// The caller must not change request before the loop has ended.
//
// The caller sees one uninterrupted stream. If the connection breaks, the server restarts or the
// token expires and there is another one, Chat reconnects and resumes after the last event.
// Indexes increase, no event is repeated, and no text is missing or doubled. There are these limits:
//
//   - If the server no longer has the single events, text and reasoning arrive in larger pieces. Some
//     indexes are then left out, and so may be progress notes, deltas of tool calls, records and
//     messages that the history has dropped.
//   - A crash of the server may lose up to one second of text that the caller has already
//     received. The messages in finished are the stored ones.
//   - A turn that loses its connection while it is queued may lose its position in the queue.
//     The turn_id may then change before started, and the indexes begin at 1 again.
//   - With ON_DISCONNECT_CANCEL a broken connection or an expired token cancels the turn, and
//     finished says so.
//   - If request_id is empty, started.replayed is never set on the first range over the
//     sequence, because the turn is a new one. If the caller sets request_id,
//     started.replayed may only mean that Chat sent the request twice.
//
// An error is yielded once, at the end, with a nil event. It is a gRPC status; see [Reason]. The
// causes are:
//
//   - The server refused the call, or the token expired and there is no other one
//     (UNAUTHENTICATED).
//   - The turn no longer exists (NOT_FOUND).
//   - ctx has ended.
//   - No server could be reached at first (UNAVAILABLE, after about 1.5 s).
//   - No new event arrived for one minute, although Chat kept retrying. The error is the status
//     of the last attempt, or [io.ErrUnexpectedEOF] if the server ends streams without finished.
//     The time that the loop's body takes does not count.
//
// Chat passes opts to each attempt.
//
// The stream ends when the caller leaves the loop or ctx ends. The turn continues on the server
// unless request.on_disconnect is ON_DISCONNECT_CANCEL. If the caller ranges over the sequence
// again, Chat sends the same request_id, which returns the same turn and never starts a second one.
func (c *Client) Chat(
	ctx context.Context, request *parleyv1.ChatRequest, opts ...grpc.CallOption,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	filled := withRequestID(request)
	var ranged atomic.Bool
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		generated := filled != request && !ranged.Swap(true)
		f := follower{retry: retry{conn: c.conn}, client: c, opts: opts, chat: filled, generatedID: generated}
		f.run(ctx, yield)
	}
}

// ResumeTurn returns the events of a turn after request.after_index as one uninterrupted stream.
// The turn may be running or have ended. Everything that [Client.Chat] guarantees for its stream
// holds here too. The sequence is empty if after_index is the index of the last event. If turn_id
// is empty, the turn is the running one, or the newest one if none runs; it is chosen when the
// first event arrives.
//
// With after_index 0, ResumeTurn works as long as the server keeps the turn. With another
// after_index it may end with OUT_OF_RANGE, EVENTS_GONE: the server no longer has the single
// events, and the client does not know how much of a message the caller has. The caller then shows
// the turn from index 0 again, or uses the offsets of deltas to cut what it has. After such a restart at the beginning,
// deltas of the arguments of a tool call may repeat what the caller has; their offset says where each belongs.
func (c *Client) ResumeTurn(
	ctx context.Context, request *parleyv1.ResumeTurnRequest, opts ...grpc.CallOption,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		f := follower{retry: retry{conn: c.conn}, client: c, opts: opts, conversation: request.GetConversationId()}
		f.view = newView(request.GetTurnId(), request.GetAfterIndex())
		f.run(ctx, yield)
	}
}
