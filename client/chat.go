package client

import (
	"context"
	"iter"
	"sync/atomic"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Chat sends request when it is ranged over and yields the events of the turn as they come:
// queued while it waits for others, started once the user's message is durable, then the
// pieces of the answer, and last finished once the answer is durable. Whatever became of the
// turn, failed included, is in finished; it is not an error. Request must not be changed
// before the loop has ended.
//
// What the caller sees is one unbroken stream: where the connection breaks, or the server
// restarts, Chat asks again and goes on where it was. Indexes rise, nothing comes twice, no
// text is missing or doubled. It helps to know that:
//
//   - Where the server no longer has the events one by one, the text comes in larger pieces,
//     indexes are left out, and so may be notes of progress and messages that the history
//     has dropped.
//   - A crash of the server may cost up to a second of text that was shown already. The
//     messages in finished are what is kept.
//   - Who waits in a queue and loses the connection may have to line up again: before
//     started, the turn_id may change, and the indexes begin at 1 again.
//   - With ON_DISCONNECT_CANCEL a break stops the turn, and that is what finished says.
//   - started.replayed is never set when request_id was empty and the sequence is ranged over
//     for the first time: the turn is a new one then. With an id of the caller's own it may
//     only mean that Chat asked twice.
//
// An error is yielded once, at the end, with a nil event. It is a gRPC status, see [Reason]:
// the call was refused; the turn is gone (NOT_FOUND); ctx has ended; no server was there at
// first (UNAVAILABLE, after about 1.5 s); or there has been nothing new for a minute, though
// Chat went on asking, with the status of the last attempt, or [io.ErrUnexpectedEOF] where
// the server ends streams without finished. Time that the loop's body takes does not count.
// Opts go with each attempt.
//
// Leaving the loop, or the end of ctx, ends the stream. The turn goes on at the server unless
// request.on_disconnect is ON_DISCONNECT_CANCEL. To range again is to ask again with
// the same request_id: the same turn, never a second one.
func (c *Client) Chat(ctx context.Context, request *parleyv1.ChatRequest, opts ...grpc.CallOption) iter.Seq2[*parleyv1.TurnEvent, error] {
	filled := withRequestID(request)
	var ranged atomic.Bool
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		f := follower{patience: patience{conn: c.conn}, client: c, opts: opts, chat: filled, ownID: filled != request && !ranged.Swap(true)}
		f.run(ctx, yield)
	}
}

// ResumeTurn yields the events of a turn behind request.after_index, whether it runs or has
// ended, as one unbroken stream; all that [Client.Chat] says of that holds here too. It
// yields nothing when after_index is that of the last event. An empty turn_id is the turn
// that runs, else the newest, when the first event comes.
//
// From 0 it works as long as the turn is kept. From elsewhere it may end with OUT_OF_RANGE,
// EVENTS_GONE: the events are no longer kept one by one, and how much of a message's text the
// caller has is not known here. Then show the turn from 0 anew, or cut its text with the help
// of TextDelta.offset.
func (c *Client) ResumeTurn(ctx context.Context, request *parleyv1.ResumeTurnRequest, opts ...grpc.CallOption) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		f := follower{patience: patience{conn: c.conn}, client: c, opts: opts, conversation: request.GetConversationId()}
		f.view = viewFrom(request.GetTurnId(), request.GetAfterIndex())
		f.run(ctx, yield)
	}
}
