package gateway

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// checkedConn is the connection that the generated handlers use. It checks the request message of
// each call against the HTTP request and sends the metadata that belongs to the call.
type checkedConn struct {
	conn grpc.ClientConnInterface
	// check returns an error, which the call returns, to refuse a request message. It may change
	// the message.
	check func(call *httpCall, request proto.Message) error
}

// Invoke makes a unary call.
func (c *checkedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	call := httpCallOf(ctx)
	if err := c.checkSize(call, args); err != nil {
		return err
	}
	return c.conn.Invoke(call.outgoing(ctx), method, args, reply, opts...)
}

// NewStream starts a streaming call.
func (c *checkedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call := httpCallOf(ctx)
	stream, err := c.conn.NewStream(call.outgoing(ctx), desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &checkedStream{ClientStream: stream, conn: c, call: call}, nil
}

// checkSize returns an error if message must not be sent.
func (c *checkedConn) checkSize(call *httpCall, message any) error {
	request, ok := message.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	if err := c.check(call, request); err != nil {
		return err
	}
	// An in-process connection does not enforce gRPC's limit, and some values are larger as a
	// message than in JSON, for example a list of numbers.
	if size := proto.Size(request); size > maxBodyBytes {
		return newStatus(codes.ResourceExhausted, reasonBodyTooLarge,
			fmt.Sprintf("the request is %d bytes as a message, more than the limit of %d: %s", size, maxBodyBytes, reduceSizeHint)).Err()
	}
	call.sent = true
	return nil
}

// checkedStream is a stream whose request messages are checked. R conn *conn⏎ ||| ⇥conn
// *checkedConn⏎
type checkedStream struct {
	grpc.ClientStream
	conn *checkedConn
	call *httpCall
}

// SendMsg checks and sends the only request message of the stream. It releases the memory of the
// request body: a stream may be long, and its replies are not large.
func (s *checkedStream) SendMsg(m any) error {
	defer s.call.release()
	if err := s.conn.checkSize(s.call, m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}
