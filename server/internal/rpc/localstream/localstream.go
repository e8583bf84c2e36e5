// Package localstream makes streaming calls inside a process. The two ends of a stream pass encoded messages to each
// other. There is no connection, whose goroutines would take most of the time of a small message.
//
// The ends behave like those of gRPC, except that a sender is at most one message before the receiver.
//
// Start at [Server].
package localstream

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Server runs the handlers of streams, each in a goroutine. Goroutines whose handlers have returned wait for the
// next ones: their stacks have grown already, which takes about 15 µs. Create a server with [New].
type Server struct {
	codec   encoding.CodecV2 // of handlers
	wire    encoding.CodecV2 // of clients: gRPC's codec for protobuf
	max     int              // bytes of a message
	base    context.Context  // of all handlers
	cancel  context.CancelFunc
	mu      sync.Mutex // guards stopped, so that running does not grow after Stop has begun to wait
	stopped bool
	running sync.WaitGroup // handlers

	workers sync.WaitGroup
	next    chan func()   // what a worker runs that waits
	waiting chan struct{} // has an element for each worker that waits
}

// waitingPerProcessor is how many workers wait for a handler, for each processor. Each keeps a stack of about 16 KiB.
const waitingPerProcessor = 4

// New returns a server. Handlers decode requests and encode replies with codec; clients do the opposite with gRPC's
// codec for protobuf. An encoded message has at most maxBytes. The end of ctx has no effect: streams end by Stop.
func New(ctx context.Context, codec encoding.CodecV2, maxBytes int) *Server {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &Server{
		codec: codec, wire: encoding.GetCodecV2(proto.Name), max: maxBytes, base: base, cancel: cancel,
		next: make(chan func()), waiting: make(chan struct{}, waitingPerProcessor*runtime.GOMAXPROCS(0)),
	}
}

// Stop refuses new streams and returns when all handlers have returned. When ctx ends, it cancels them.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	s.running.Wait()
	s.cancel()
	s.workers.Wait()
}

// Open calls handler with one end of a stream and returns the other. As with gRPC, the caller reads the stream until
// its end, or cancels ctx.
//
// Of ctx, the handler gets the end, the deadline, and the outgoing metadata as incoming, but no other values. It must
// return soon after its context has ended. Open returns UNAVAILABLE after [Server.Stop].
func (s *Server) Open(
	ctx context.Context, desc *grpc.StreamDesc, handler func(grpc.ServerStream) error,
) (grpc.ClientStream, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, errStopping()
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	in := metadata.NewIncomingContext(s.base, sent)
	st := &stream{
		desc: desc, max: s.max, requests: make(chan mem.BufferSlice, 1), replies: make(chan mem.BufferSlice, 1),
		closed: make(chan struct{}), begun: make(chan struct{}), ended: make(chan struct{}),
	}
	var cancel context.CancelFunc
	if deadline, ok := ctx.Deadline(); ok {
		in, cancel = context.WithDeadline(in, deadline)
	} else {
		in, cancel = context.WithCancel(in)
	}
	release := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // The handler has the same deadline.
			cancel()
		}
	})
	s.running.Add(1)
	s.start(func() {
		defer s.running.Done()
		defer release()
		defer cancel()
		st.end(handler(&serverStream{stream: st, ctx: in, codec: s.codec}))
	})
	return &clientStream{stream: st, ctx: ctx, server: s.base, codec: s.wire, cancel: cancel}, nil
}

func errStopping() error { return status.Error(codes.Unavailable, "the server is stopping") }

// start calls run in the goroutine of a worker.
func (s *Server) start(run func()) {
	select {
	case s.next <- run:
		return
	default: // No worker waits.
	}
	s.workers.Go(func() {
		for {
			run()
			run = nil // It refers to the request and the credentials of its caller.
			select {
			case s.waiting <- struct{}{}:
			default:
				return
			}
			select {
			case run = <-s.next:
				<-s.waiting
			case <-s.base.Done():
				return
			}
		}
	})
}

// stream is what both ends share.
type stream struct {
	desc              *grpc.StreamDesc
	max               int // bytes of a message
	requests, replies chan mem.BufferSlice
	closed            chan struct{} // The client sends no more requests.
	begun             chan struct{} // The header is complete.
	ended             chan struct{} // The handler has returned.

	mu              sync.Mutex // guards header and trailer, and that begun is closed once
	header, trailer metadata.MD
	err             error // nil, or that of a status; set before ended is closed
}

// begin completes the header.
func (s *stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isClosed(s.begun) {
		close(s.begun)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// end ends the stream with the error of its handler.
func (s *stream) end(err error) {
	if err != nil {
		if st, ok := status.FromError(err); ok {
			err = st.Err()
		} else {
			err = status.FromContextError(err).Err()
		}
	}
	s.begin()
	s.err = err
	close(s.ended)
}

// encode encodes a message.
func (s *stream) encode(m any, codec encoding.CodecV2) (mem.BufferSlice, error) {
	data, err := codec.Marshal(m)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode a %T: %v", m, err)
	}
	if n := data.Len(); n > s.max {
		data.Free()
		return nil, status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", n, s.max)
	}
	return data, nil
}

// serverStream is the end of the handler.
type serverStream struct {
	*stream

	ctx   context.Context
	codec encoding.CodecV2
}

// Context returns the context of the call.
func (s *serverStream) Context() context.Context { return s.ctx }

// SetHeader adds to the header.
func (s *serverStream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.begun) {
		return status.Error(codes.Internal, "the header was already sent")
	}
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader adds to the header and sends it.
func (s *serverStream) SendHeader(md metadata.MD) error {
	if err := s.SetHeader(md); err != nil {
		return err
	}
	s.begin()
	return nil
}

// SetTrailer adds to the trailer.
func (s *serverStream) SetTrailer(md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
}

// SendMsg sends a reply. It waits until the client has received the previous one.
func (s *serverStream) SendMsg(m any) error {
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	data, err := s.encode(m, s.codec)
	if err != nil {
		return err
	}
	s.begin()
	select {
	case s.replies <- data:
		return nil
	case <-s.ctx.Done():
		data.Free()
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// RecvMsg receives a request, or io.EOF after the last one.
func (s *serverStream) RecvMsg(m any) error {
	data, err := receive(s.ctx, s.requests, s.closed)
	if err != nil {
		return err
	}
	defer data.Free()
	if err := s.codec.Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "decode a request: %v", err)
	}
	return nil
}

// receive returns the next message; io.EOF if there is none after last is closed.
func receive(
	ctx context.Context, messages <-chan mem.BufferSlice, last <-chan struct{},
) (mem.BufferSlice, error) {
	select {
	case data := <-messages:
		return data, nil
	case <-last:
	case <-ctx.Done():
		if !isClosed(last) {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	select {
	case data := <-messages: // It was sent before the end.
		return data, nil
	default:
		return nil, io.EOF
	}
}

// clientStream is the end of the caller.
type clientStream struct {
	*stream

	ctx       context.Context
	server    context.Context // ends with the server
	codec     encoding.CodecV2
	cancel    context.CancelFunc // of the handler
	closeOnce sync.Once
}

// Context returns the context of the call.
func (c *clientStream) Context() context.Context { return c.ctx }

// Header returns the header. It waits until the handler sends it, or returns.
func (c *clientStream) Header() (metadata.MD, error) {
	select {
	case <-c.begun:
	case <-c.ctx.Done():
		return nil, status.FromContextError(c.ctx.Err()).Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header, nil
}

// Trailer returns the trailer. It is complete after the end of the stream.
func (c *clientStream) Trailer() metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trailer
}

// CloseSend says that there are no more requests.
func (c *clientStream) CloseSend() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return nil
}

// SendMsg sends a request. It waits until the handler has received the previous one. If the stream has ended, it
// returns io.EOF, or nil if there is only one request, as gRPC does; RecvMsg then returns why it has ended.
func (c *clientStream) SendMsg(m any) error {
	data, err := c.encode(m, c.codec)
	if err != nil {
		c.cancel()
		return err
	}
	select {
	case c.requests <- data:
		err = nil
	case <-c.ended:
		err = io.EOF
	case <-c.ctx.Done():
		err = io.EOF
	}
	if err != nil {
		data.Free()
	}
	if !c.desc.ClientStreams {
		return c.CloseSend()
	}
	return err
}

// RecvMsg receives a reply. After the last one it returns the error of the handler, or io.EOF.
func (c *clientStream) RecvMsg(m any) error {
	err := c.receive(m)
	if !c.desc.ServerStreams {
		err = c.onlyReply(err)
	}
	if err != nil {
		c.cancel()
	}
	return err
}

// onlyReply returns the error of a stream with one reply, after its reception with err. The reply counts if the handler
// then succeeds.
func (c *clientStream) onlyReply(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "the handler returned without a reply")
	}
	if err == nil {
		if err = c.receive(nil); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return err
}

// receive receives a reply into m, which is nil if there must be none.
func (c *clientStream) receive(m any) error {
	data, err := receive(c.ctx, c.replies, c.ended)
	if errors.Is(err, io.EOF) && c.err != nil {
		if status.Code(c.err) == codes.Canceled && c.ctx.Err() == nil && c.server.Err() != nil {
			return errStopping() // Stop has cancelled it, not the caller.
		}
		return c.err
	}
	if err != nil {
		return err
	}
	defer data.Free()
	if m == nil {
		return status.Error(codes.Internal, "the handler sent more than one reply")
	}
	if err := c.codec.Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "decode a reply: %v", err)
	}
	return nil
}
