package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Appender appends messages to conversations through one stream, which costs less than a call for each request. Many
// requests may be under way at the same time. Requests of one conversation are stored in the order of the calls of
// Append. An Appender is safe for concurrent use.
//
// If the connection breaks, the server restarts or the token expires and there is another one, the Appender
// reconnects. It then sends the requests without a reply again, in the same order and with the same request_ids, so
// that nothing is missing and nothing is stored twice. Between two requests it may be idle for any time.
//
// The Appender fails, and with it all requests without a reply, in these cases:
//
//   - The server refused the stream, or the token expired and there is no other one (UNAUTHENTICATED).
//   - The server is too old and has no AppendStream (UNIMPLEMENTED).
//   - No server could be reached at first (UNAVAILABLE, after about 1.5 s).
//   - No reply arrived for one minute, although the Appender kept retrying. The error is the status of the last
//     attempt, or [io.ErrUnexpectedEOF] if the server ends streams without a reply.
//   - The context of the Appender has ended, or the client was closed.
type Appender struct {
	retry // Owned by run; mu guards it while a stream is open.

	client  *Client
	opts    []grpc.CallOption
	adding  chan struct{} // Contains an element while a call of Append adds a request.
	freed   chan struct{} // Wakes that call when there may be capacity again.
	changed chan struct{} // Wakes run or send when there is a request or the Appender is closed.
	ended   chan struct{} // Closed when run has ended.

	mu       sync.Mutex
	queue    appendQueue
	accepted bool // The server has answered a request.
	closed   bool
	failed   error
}

type appendStream = grpc.BidiStreamingClient[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]

// NewAppender returns an Appender. It opens its stream with the first request, and passes opts to each attempt. Call
// Close when the Appender is no longer needed, or end ctx. If ctx ends, all requests without a reply fail; the server
// may still store them.
func (c *Client) NewAppender(ctx context.Context, opts ...grpc.CallOption) *Appender {
	a := &Appender{
		retry: retry{conn: c.conn}, client: c, opts: opts,
		adding: make(chan struct{}, 1), freed: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		ended: make(chan struct{}), queue: appendQueue{conversations: map[string]int{}},
	}
	go a.run(ctx)
	return a
}

// Append sends request and returns without waiting for its reply. It waits only while 1024 requests or 4 MiB of them
// are under way, or 16 requests for this conversation. If ctx ends while it waits, request is not sent. After that, ctx
// has no effect. Calls that wait are served in order.
//
// If request_id is empty, the Appender sets a random UUID on a copy. The response may be marked as replayed because the
// Appender sent the request twice. The caller must not change request before the reply has arrived.
func (a *Appender) Append(ctx context.Context, request *parleyv1.AppendMessagesRequest) *AppendResult {
	request = withRequestID(request)
	result := &AppendResult{request: request, size: proto.Size(request), done: make(chan struct{})}
	if err := a.add(ctx, result); err != nil {
		result.set(nil, err)
	}
	return result
}

// add adds result to the queue as soon as there is capacity.
func (a *Appender) add(ctx context.Context, result *AppendResult) error {
	if result.size > maxAppendBytes {
		return tooLarge(result.size, maxAppendBytes)
	}
	select {
	case a.adding <- struct{}{}:
		defer func() { <-a.adding }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	for {
		added, err := a.tryAdd(result)
		if added || err != nil {
			return err
		}
		select {
		case <-a.freed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// tryAdd adds result to the queue if there is capacity.
func (a *Appender) tryAdd(result *AppendResult) (added bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.failed != nil:
		return false, a.failed
	case a.closed:
		return false, status.Error(codes.FailedPrecondition, "the appender is closed")
	case !a.queue.add(result):
		return false, nil
	}
	wake(a.changed)
	return true, nil
}

// wake wakes the goroutine that receives from signal. If none does, the next receive returns at once.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// Flush waits for the replies to all requests so far. It returns nil also if the server refused some of them; see
// [AppendResult.Wait]. It returns an error if the Appender has failed, or if ctx ends first.
func (a *Appender) Flush(ctx context.Context) error {
	a.mu.Lock()
	results := slices.Clone(a.queue.results)
	a.mu.Unlock()
	for _, result := range results {
		select {
		case <-result.done:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return a.Err()
}

// Close waits for the replies to all requests and ends the stream. Later requests fail with FAILED_PRECONDITION. Close
// returns the error of the Appender if it has failed, otherwise nil. To end without waiting, end the context of the
// Appender before.
func (a *Appender) Close() error {
	a.mu.Lock()
	a.closed = true
	wake(a.changed)
	wake(a.freed)
	a.mu.Unlock()
	<-a.ended
	return a.Err()
}

// Err returns the error with which the Appender has failed, or nil. Requests without a reply have the same error; the
// server may have stored them.
func (a *Appender) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// run sends requests until the Appender is closed or has failed.
func (a *Appender) run(ctx context.Context) {
	defer close(a.ended)
	for a.awaitWork(ctx) {
		a.err = a.attempt(ctx, a.exchange)
		if a.hasWork() && !a.resume(ctx) {
			a.fail(a.err)
			return
		}
	}
}

// awaitWork waits for a request. It returns false if the Appender is closed and has none left. It fails the Appender
// and returns false if ctx ends.
func (a *Appender) awaitWork(ctx context.Context) bool {
	for !a.hasWork() {
		if a.isFinished() {
			return false
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			a.fail(status.FromContextError(ctx.Err()).Err())
			return false
		}
	}
	return true
}

// hasWork reports whether there is a request without a reply. Before, it restarts the time limit if the queue was
// empty: no stream may have sent the request yet.
func (a *Appender) hasWork() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteIdleEnd()
	return a.queue.last() != nil
}

// isFinished reports whether the Appender is closed and all replies have arrived.
func (a *Appender) isFinished() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed && a.queue.last() == nil
}

// noteIdleEnd restarts the time limit if the queue was empty before its first request, because the time without
// requests does not count. The caller must hold mu.
func (a *Appender) noteIdleEnd() {
	if a.queue.wasEmpty && a.connected {
		a.resetDeadline()
	}
	a.queue.wasEmpty = false
}

// fail ends the Appender and all its requests with err.
func (a *Appender) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
	for result := a.queue.first(); result != nil; result = a.queue.first() {
		a.queue.remove(result)
		result.set(nil, err)
	}
	wake(a.freed)
}

// resume returns true when it is time to send the requests without a reply on another stream. If it returns false,
// a.err is the error of the Appender.
func (a *Appender) resume(ctx context.Context) bool {
	switch {
	case status.Code(a.err) == codes.Unimplemented:
		a.err = status.Error(codes.Unimplemented, "the server has no AppendStream: update it, or use AppendMessages")
		return false
	case Reason(a.err) == "SLOW_SENDER": // The server ended the idle stream just before the next request.
		return a.wait(ctx)
	case a.accepted && (Reason(a.err) == "TENANT_STREAMS" || Reason(a.err) == "TENANT_REQUESTS"):
		return a.wait(ctx) // The server may still count the broken stream, and its requests.
	}
	return a.next(ctx)
}

// exchange opens one stream, sends all requests without a reply, then new ones, and receives the replies until the
// stream ends. It returns nil if the Appender is closed and all replies have arrived.
func (a *Appender) exchange(ctx context.Context, silence *time.Timer) error {
	ctx, cancel := context.WithCancel(ctx)
	// The Appender itself sends requests again. With retries by gRPC, sending would wait while gRPC waits, and gRPC would
	// keep a copy of the requests.
	opts := append([]grpc.CallOption{grpc.MaxRetryRPCBufferSize(0)}, a.opts...)
	stream, err := a.client.AppendStream(ctx, opts...)
	if err != nil {
		cancel()
		return err
	}
	a.noteConnected()
	silence.Stop() // It runs while a sent request has no reply.
	a.queue.sent = 0
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() { a.send(ctx, stream, silence) })
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && a.isFinished():
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the server ended the stream: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
		response, refusal := answerOf(reply)
		if status.Code(refusal) == codes.Unavailable {
			return refusal // Another stream sends the request again, as a client does with AppendMessages.
		}
		if err := a.answer(response, refusal, silence); err != nil {
			return err
		}
	}
}

// answerOf returns the response or the error that a reply contains.
func answerOf(reply *parleyv1.AppendStreamResponse) (*parleyv1.AppendMessagesResponse, error) {
	switch result := reply.GetResult().(type) {
	case *parleyv1.AppendStreamResponse_Response:
		return result.Response, nil
	case *parleyv1.AppendStreamResponse_Error:
		if err := status.FromProto(result.Error).Err(); err != nil {
			return nil, err
		}
	}
	return nil, status.Error(codes.Internal, "the server sent a reply without a response")
}

// answer sets the result of the oldest request.
func (a *Appender) answer(response *parleyv1.AppendMessagesResponse, refusal error, silence *time.Timer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queue.sent == 0 {
		return status.Error(codes.Internal, "the server sent a reply without a request")
	}
	result := a.queue.first()
	a.queue.remove(result)
	result.set(response, refusal)
	a.accepted, a.progress = true, true
	a.resetDeadline()
	if a.queue.sent > 0 {
		silence.Reset(a.receiveTimeout())
	} else {
		silence.Stop()
	}
	wake(a.freed)
	return nil
}

// send sends the requests of the queue until the Appender is closed or the stream ends, which exchange notices.
func (a *Appender) send(ctx context.Context, stream appendStream, silence *time.Timer) {
	for {
		result, request := a.nextToSend(ctx, silence)
		if result == nil {
			_ = stream.CloseSend() // It never fails.
			return
		}
		err := stream.Send(&parleyv1.AppendStreamRequest{Append: request})
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			a.refuseUnencodable(result, request)
		}
		return
	}
}

// nextToSend waits for a request that this stream has not sent. It returns nil if the Appender is closed or ctx ends.
func (a *Appender) nextToSend(
	ctx context.Context, silence *time.Timer,
) (*AppendResult, *parleyv1.AppendMessagesRequest) {
	for {
		a.mu.Lock()
		if result := a.queue.next(); result != nil {
			a.noteIdleEnd()
			if a.queue.sent == 1 {
				silence.Reset(a.receiveTimeout())
			}
			request := result.request
			a.mu.Unlock()
			return result, request
		}
		closed := a.closed
		a.mu.Unlock()
		if closed {
			return nil, nil
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// refuseUnencodable fails a request that cannot be encoded, for example because of invalid UTF-8. Sending it has broken
// the stream, but must not fail the other requests.
func (a *Appender) refuseUnencodable(result *AppendResult, request *parleyv1.AppendMessagesRequest) {
	_, err := proto.Marshal(request)
	if err == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queue.remove(result) {
		result.set(nil, status.Errorf(codes.Internal, "encode the request: %v", err))
		wake(a.freed)
	}
}
