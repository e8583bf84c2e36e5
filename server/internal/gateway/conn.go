package gateway

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// conn is what the generated handlers make their calls over. It knows the HTTP request of
// each call, sends the metadata that goes along, and has the request message looked at.
type conn struct {
	under grpc.ClientConnInterface
	// check refuses a request message by an error, which becomes that of the call. It may
	// change the message.
	check func(x *exchange, request proto.Message) error
}

// Invoke makes a unary call.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	x := exchangeOf(ctx)
	if err := c.look(x, args); err != nil {
		return err
	}
	return c.under.Invoke(x.outgoing(ctx), method, args, reply, opts...)
}

// NewStream begins a streaming call.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	x := exchangeOf(ctx)
	stream, err := c.under.NewStream(x.outgoing(ctx), desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &checkedStream{ClientStream: stream, conn: c, x: x}, nil
}

// look checks a request message that is about to be sent.
func (c *conn) look(x *exchange, message any) error {
	request, ok := message.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	if err := c.check(x, request); err != nil {
		return err
	}
	// Not every connection has this bound of gRPC, and a list of numbers, say, is longer as a
	// message than in JSON.
	if size := proto.Size(request); size > maxBodyBytes {
		return newStatus(codes.ResourceExhausted, reasonBodyTooLarge,
			fmt.Sprintf("the request is %d bytes as a message, and may be %d: %s", size, maxBodyBytes, sendLess)).Err()
	}
	x.sent = true
	return nil
}

// checkedStream is a stream whose request messages are checked.
type checkedStream struct {
	grpc.ClientStream
	conn *conn
	x    *exchange
}

// SendMsg sends a message that passes. It is the only one of its stream, which may be a long
// one: what follows is not large any more.
func (s *checkedStream) SendMsg(m any) error {
	defer s.x.leave()
	if err := s.conn.look(s.x, m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}
