package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxSilence is how long a response waits for the first reply of a turn that may be silent for a
// while. After that the header is sent. If the stream then fails or ends, it contains only the
// error, or nothing; a client that asks again receives the status at once.
const maxSilence = 250 * time.Millisecond

// streamingConn is a connection whose streams choose the response header by the first
// reply, and resume at the position in Last-Event-ID.
type streamingConn struct{ grpc.ClientConnInterface }

// NewStream starts a streaming call.
func (c streamingConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	o, ok := responseWriterOf(ctx)
	if !ok || desc.ClientStreams {
		return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	}
	r := &replyStream{
		conn: c.ClientConnInterface, ctx: ctx, opts: opts, method: method, response: o, arrived: make(chan struct{}),
	}
	ctx, r.cancelChat = context.WithCancel(ctx)
	var err error
	if r.ClientStream, err = c.ClientConnInterface.NewStream(ctx, desc, method, opts...); err != nil {
		r.cancelChat()
		return nil, err
	}
	o.replies, o.noDeadline = r, method == parleyv1.ConversationService_WatchConversations_FullMethodName
	return r, nil
}

// replyStream is a stream whose first reply is received early: the response header depends on it.
type replyStream struct {
	grpc.ClientStream
	conn       grpc.ClientConnInterface
	ctx        context.Context // Context of the call.
	opts       []grpc.CallOption
	method     string
	response   *responseWriter
	cancelChat context.CancelFunc // Cancels the first stream.
	resumption

	arrived chan struct{} // Closed when first or err is set.
	first   proto.Message // Nil if RecvMsg has returned it, or if there is none.
	err     error
	empty   bool // The stream ended without a reply and without an error.
	pending bool // Header returned before the first reply.
}

// Header waits until the first reply, the end of the stream or an error is known. For a turn that
// may be silent, it waits at most maxSilence.
func (r *replyStream) Header() (metadata.MD, error) {
	var silence <-chan time.Time
	if r.method == parleyv1.ConversationService_ResumeTurn_FullMethodName || r.after > 0 {
		timer := time.NewTimer(maxSilence)
		defer timer.Stop()
		silence = timer.C
	}
	go func() { // It ends when the call ends.
		defer close(r.arrived)
		r.first, r.err = r.receiveFirst()
	}()
	select {
	case <-r.arrived:
	case <-silence:
		r.pending = true
		return metadata.MD{}, nil
	}
	if errors.Is(r.err, io.EOF) {
		r.empty = true
		return nil, nil
	}
	if r.err != nil {
		return nil, r.err
	}
	return metadata.MD{}, nil
}

// RecvMsg receives the next reply.
func (r *replyStream) RecvMsg(m any) error {
	<-r.arrived
	if r.err != nil {
		return r.err
	}
	if r.first == nil {
		r.err = r.receive(m)
		return r.err
	}
	to, ok := m.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	proto.Merge(to, r.first)
	r.first = nil
	return nil
}

// replyTo returns an empty reply message of a method.
func replyTo(method string) (proto.Message, error) {
	descriptor := methodOf(method)
	if descriptor == nil {
		return nil, fmt.Errorf("method %q is unknown", method)
	}
	reply, err := protoregistry.GlobalTypes.FindMessageByName(descriptor.Output().FullName())
	if err != nil {
		return nil, err
	}
	return reply.New().Interface(), nil
}
