package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// WatchConversations watches as request says when it is ranged over and yields the changes
// as they are committed, behind request.cursor, else from now on. It does not end by itself:
// leaving the loop, or the end of ctx, ends the stream at once. Request must not be changed
// before the loop has ended; to range again is to begin again with it.
//
// What the caller sees is one stream: where the connection breaks, or the server restarts, it
// is asked again and goes on behind the last change, so that nothing is missing and nothing
// comes twice. It helps to know that:
//
//   - A HEARTBEAT is handed on like the rest. The first one says that the watch stands, with
//     request.delete_after_disconnect in force; then one comes after every 15 s of silence,
//     and one more each time that the stream has been opened anew. The cursor of each change,
//     heartbeats included, is where another watch can go on, say after the caller's restart.
//   - A GAP says that changes are missing: the server no longer has them, has restarted, or
//     the caller has taken too long for what came before. Read the state anew, then go on;
//     what is committed after the GAP comes behind it, so nothing falls between.
//   - Events of turns have no place in that order: of those that fall into a break none come.
//     Their index and offset tell, and [Client.ResumeTurn] has the whole turn.
//   - To the server a break is a disconnect: session memory that is to outlive one needs a
//     delete_after_disconnect of some seconds. Two minutes outlive any that is gone on with.
//
// An error is yielded once, at the end, with a nil change. It is a gRPC status, see [Reason]:
// the watch was refused; ctx has ended; no server was there at first (UNAVAILABLE, after about
// 1.5 s); or the server has not answered for a minute, though it was asked again and again, with
// the status of the last attempt, or [io.ErrUnexpectedEOF] where it ends each stream without a
// word. Over its limit of watchers (TOO_MANY_WATCHERS) a server refuses a new watch; one that it
// had let in before tries for that minute, since its own broken stream may still be counted.
// Time that the loop's body takes does not count. Opts go with each attempt.
func (c *Client) WatchConversations(ctx context.Context, request *parleyv1.WatchConversationsRequest, opts ...grpc.CallOption) iter.Seq2[*parleyv1.ConversationChange, error] {
	return func(yield func(*parleyv1.ConversationChange, error) bool) {
		w := watcher{patience: patience{conn: c.conn}, client: c, opts: opts, request: &parleyv1.WatchConversationsRequest{}}
		proto.Merge(w.request, request)
		w.run(ctx, yield)
	}
}

// watcher shows changes to one caller, over as many streams as that takes.
type watcher struct {
	patience

	client  *Client
	opts    []grpc.CallOption
	request *parleyv1.WatchConversationsRequest // Its cursor is that of the last change shown.
	letIn   bool                                // The server has sent something, ever.
}

// run shows changes until the caller leaves or there is no way to go on.
func (w *watcher) run(ctx context.Context, yield func(*parleyv1.ConversationChange, error) bool) {
	for {
		err := w.attempt(ctx, func(ctx context.Context, silence *time.Timer) error {
			return w.read(ctx, silence, yield)
		})
		if err == nil {
			return
		}
		w.broken = err
		full := w.letIn && Reason(err) == "TOO_MANY_WATCHERS"
		if !full && !isBreak(err) || !w.wait(ctx) {
			yield(nil, w.broken)
			return
		}
	}
}

// read opens a stream and shows what it brings. It returns nil when the caller has left.
func (w *watcher) read(ctx context.Context, silence *time.Timer, yield func(*parleyv1.ConversationChange, error) bool) error {
	stream, err := w.client.ConversationServiceClient.WatchConversations(ctx, w.request, w.opts...)
	if err != nil {
		return err
	}
	w.met()
	for {
		silence.Reset(w.left())
		response, err := stream.Recv()
		silence.Stop()
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the server has ended the watch: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		case response.GetChange() != nil && !w.show(response.GetChange(), yield):
			return nil
		}
	}
}

// show shows a change and reports whether the caller wants more.
func (w *watcher) show(change *parleyv1.ConversationChange, yield func(*parleyv1.ConversationChange, error) bool) bool {
	if cursor := change.GetCursor(); cursor != "" {
		w.request.Cursor = cursor
	}
	w.letIn, w.news = true, true
	delay := w.delay
	more := yield(change, nil)
	w.calm()
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, parleyv1.ChangeKind_CHANGE_KIND_GAP:
		// A server that answers, but breaks each stream behind that, is not to be asked ever
		// more quickly.
		w.delay = delay
	}
	return more
}
