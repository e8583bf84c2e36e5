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

// WatchConversations returns the changes of conversations as they are committed. It sends request
// when the caller ranges over the sequence. The changes begin after request.cursor or, if it is
// empty, with the next commit. The sequence has no end of its own: the stream ends when the
// caller leaves the loop or ctx ends. The caller must not change request before the loop has ended.
// If the caller ranges over the sequence again, the watch begins again with request.
//
// The caller sees one stream. If the connection breaks or the server restarts, WatchConversations
// reconnects and resumes after the last change, so that no change is missing and none is repeated.
// There are these limits:
//
//   - The sequence includes each HEARTBEAT. The first one confirms that the watch is active,
//     with request.delete_after_disconnect in force. Another one follows after each 15 s without
//     a change, and each time the stream is opened again. Every change, heartbeats included, has
//     a cursor from which another watch can resume, for example after the caller restarts.
//   - A GAP means that changes are missing, because the server no longer has them, has
//     restarted, or the caller was too slow to read earlier changes. Read the state again, then
//     continue. Changes that are committed after the GAP follow it, so none is lost between.
//   - Events of turns are not part of that order. The events of turns during a break are lost.
//     Index and offset of the later events show this, and [Client.ResumeTurn] returns the
//     complete turn.
//   - If the token of the watch has expired and there is another one, the watch opens its next
//     stream before the server ends the present one, 30 s after the expiry. So ephemeral
//     conversations are not deleted. Some events of turns may be lost.
//   - For the server a break is a disconnect. An ephemeral conversation that must survive a
//     break needs a delete_after_disconnect of some seconds. Two minutes are longer than any
//     break after which the client resumes.
//
// An error is yielded once, at the end, with a nil change. It is a gRPC status; see [Reason]. The
// causes are:
//
//   - The server refused the watch, or the token expired and there is no other one
//     (UNAUTHENTICATED).
//   - ctx has ended.
//   - No server could be reached at first (UNAVAILABLE, after about 1.5 s).
//   - The server sent nothing for one minute, although WatchConversations kept retrying. The
//     error is the status of the last attempt, or [io.ErrUnexpectedEOF] if the server ends each
//     stream without a message. The time that the loop's body takes does not count.
//
// At its limit of watchers the server refuses a new watch (TOO_MANY_WATCHERS). A watch that the server
// accepted before retries for that minute, because the server may still count its broken stream.
//
// WatchConversations passes opts to each attempt.
func (c *Client) WatchConversations(ctx context.Context, request *parleyv1.WatchConversationsRequest,
	opts ...grpc.CallOption,
) iter.Seq2[*parleyv1.ConversationChange, error] {
	return func(yield func(*parleyv1.ConversationChange, error) bool) {
		w := watcher{retry: retry{conn: c.conn}, client: c, opts: opts, request: &parleyv1.WatchConversationsRequest{}}
		proto.Merge(w.request, request)
		w.run(ctx, yield)
	}
}

// renewDelay is the minimum time between two attempts to replace a stream whose credential has expired.
const renewDelay = 5 * time.Second

// yieldChange passes a change, or at the end an error, to the caller. It returns false if the
// caller has left the loop.
type yieldChange = func(*parleyv1.ConversationChange, error) bool

// watcher delivers changes to one caller. It opens as many streams as it needs.
type watcher struct {
	retry

	client   *Client
	opts     []grpc.CallOption
	request  *parleyv1.WatchConversationsRequest // Its cursor is that of the last delivered change.
	accepted bool                                // The server has sent a change on any stream.
}

// run delivers changes until the caller leaves the loop or the watch cannot resume.
func (w *watcher) run(ctx context.Context, yield yieldChange) {
	for {
		err := w.attempt(ctx, func(ctx context.Context, silence *time.Timer) error {
			return w.read(ctx, silence, yield)
		})
		if err == nil {
			return
		}
		w.err = err
		full := w.accepted && Reason(err) == "TOO_MANY_WATCHERS"
		if full && w.wait(ctx) || !full && w.next(ctx) {
			continue
		}
		yield(nil, w.err)
		return
	}
}

// read opens one stream and delivers its changes, and those of the streams that replace it. It returns nil if the
// caller has left the loop.
func (w *watcher) read(ctx context.Context, silence *time.Timer, yield yieldChange) error {
	stream, err := w.open(ctx)
	if err != nil {
		return err
	}
	w.noteConnected()
	for {
		change, err := w.receive(stream, silence)
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the server ended the watch: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		case change != nil && !w.deliver(change, yield):
			return nil
		}
		stream = w.renew(ctx, stream, silence)
	}
}

// watchStream is one stream of a watch. It ends with the attempt, or earlier when cancel is called.
type watchStream struct {
	grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]

	cancel context.CancelFunc
	signIn *tokenUse
	begun  bool                         // The first response has arrived.
	first  *parleyv1.ConversationChange // A change that receive has not returned yet.
	renew  time.Time                    // When to open the next stream; if zero, the credential does not expire.
}

// open opens a stream after the last change.
func (w *watcher) open(ctx context.Context) (*watchStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	ctx, w.signIn = withTokenUse(ctx)
	stream, err := w.client.ConversationServiceClient.WatchConversations(ctx, w.request, w.opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &watchStream{ServerStreamingClient: stream, cancel: cancel, signIn: w.signIn}, nil
}

// receive returns the next change of s, or nil for a response without one.
func (w *watcher) receive(s *watchStream, silence *time.Timer) (change *parleyv1.ConversationChange, err error) {
	if change, s.first = s.first, nil; change != nil {
		return change, nil
	}
	silence.Reset(w.receiveTimeout())
	response, err := s.Recv()
	silence.Stop()
	if err == nil && !s.begun {
		s.begun, s.renew = true, credentialExpires(s)
	}
	return response.GetChange(), err
}

// credentialExpires returns when the credential of a stream expires, according to the server, or zero. The server
// ends the stream 30 s later.
func credentialExpires(stream grpc.ClientStream) time.Time {
	header, err := stream.Header() // The header has arrived before the first response.
	if values := header.Get("parley-credential-expires"); err == nil && len(values) == 1 {
		expires, _ := time.Parse(time.RFC3339, values[0])
		return expires
	}
	return time.Time{}
}

// renew returns the stream with which the watch continues. If the credential of s has expired and there is another
// one, renew replaces s while the server still accepts it, so that the ephemeral conversations of the watch always
// have a stream. There is a message at least every 15 s, so this happens in time. If it fails, the watch continues
// with s, and resumes after the server has ended it.
func (w *watcher) renew(ctx context.Context, s *watchStream, silence *time.Timer) *watchStream {
	if s.renew.IsZero() || time.Now().Before(s.renew) {
		return s
	}
	s.renew = time.Now().Add(renewDelay)
	if replaced, err := s.signIn.replaced(ctx, false); err != nil || !replaced {
		return s
	}
	next, err := w.open(ctx)
	if err == nil {
		if next.first, err = w.receive(next, silence); err == nil {
			s.cancel()
			return next
		}
		next.cancel()
	}
	w.signIn = s.signIn
	return s
}

// deliver yields change. It reports whether the caller is still in the loop.
func (w *watcher) deliver(change *parleyv1.ConversationChange, yield yieldChange) bool {
	if cursor := change.GetCursor(); cursor != "" {
		w.request.Cursor = cursor
	}
	w.accepted, w.progress = true, true
	delay := w.delay
	more := yield(change, nil)
	w.resetDeadline()
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, parleyv1.ChangeKind_CHANGE_KIND_GAP:
		// Keep the delay, so that the client does not retry quickly against a server that
		// answers but breaks each stream after its first messages.
		w.delay = delay
	}
	return more
}
