package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxSilence is how long the answer waits for a first reply where there may be none for a
// while. An error or an end that comes later finds the header sent: the stream is empty, or
// has the error, and who asks again is told at once.
const maxSilence = 250 * time.Millisecond

// streamingConn has streams of replies begin as their outlets need it, and go on where the
// client's Last-Event-ID says.
type streamingConn struct{ grpc.ClientConnInterface }

// NewStream begins a streaming call.
func (c streamingConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o, ok := outletOf(ctx)
	if !ok || desc.ClientStreams {
		return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	}
	r := &replies{conn: c.ClientConnInterface, ctx: ctx, opts: opts, method: method, outlet: o, arrived: make(chan struct{})}
	ctx, r.leaveChat = context.WithCancel(ctx)
	var err error
	if r.ClientStream, err = c.ClientConnInterface.NewStream(ctx, desc, method, opts...); err != nil {
		r.leaveChat()
		return nil, err
	}
	o.replies, o.patient = r, method == parleyv1.ConversationService_WatchConversations_FullMethodName
	return r, nil
}

// replies is a stream of replies whose first is fetched ahead: what the answer is to be
// depends on whether there is one.
type replies struct {
	grpc.ClientStream
	conn      grpc.ClientConnInterface
	ctx       context.Context // Of the call; its end ends all.
	opts      []grpc.CallOption
	method    string
	outlet    *outlet
	leaveChat context.CancelFunc // Ends the stream that was the first.
	resumption

	arrived chan struct{} // Closed when there is a first reply, or an error.
	first   proto.Message // Nil: it has been handed on, or there is none.
	err     error
	none    bool // The stream has ended well with no reply.
	late    bool // The first reply had not come when the answer was begun.
}

// Header waits until it is clear how the answer begins: with a reply, with none at all, with
// an error, or, since nothing has been said for a while, without knowing.
func (r *replies) Header() (metadata.MD, error) {
	var silence <-chan time.Time
	if r.method == parleyv1.ConversationService_ResumeTurn_FullMethodName || r.after > 0 {
		timer := time.NewTimer(maxSilence)
		defer timer.Stop()
		silence = timer.C
	}
	go func() { // Ends with the call.
		defer close(r.arrived)
		r.first, r.err = r.fetchFirst()
	}()
	select {
	case <-r.arrived:
	case <-silence:
		r.late = true
		return metadata.MD{}, nil
	}
	if errors.Is(r.err, io.EOF) {
		r.none = true
		return nil, nil
	}
	if r.err != nil {
		return nil, r.err
	}
	return metadata.MD{}, nil
}

// RecvMsg fetches the next reply.
func (r *replies) RecvMsg(m any) error {
	<-r.arrived
	if r.err != nil {
		return r.err
	}
	if r.first == nil {
		r.err = r.fetch(m)
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

// replyTo makes an empty reply of a method.
func replyTo(method string) (proto.Message, error) {
	descriptor := methodOf(method)
	if descriptor == nil {
		return nil, errors.New(method + " is no method")
	}
	reply, err := protoregistry.GlobalTypes.FindMessageByName(descriptor.Output().FullName())
	if err != nil {
		return nil, err
	}
	return reply.New().Interface(), nil
}
