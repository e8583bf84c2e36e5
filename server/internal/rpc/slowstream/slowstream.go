// Package slowstream ends streams whose clients do not read, or do not send the next request.
//
// A handler that blocks in gRPC's SendMsg or RecvMsg cannot be interrupted: it blocks until the client acts or
// the stream ends, and the stream ends when the interceptor returns. So [Limit] runs the handler in another
// goroutine and returns while it is still running. The handler returns soon after that. [Interruptible] is for
// the many streams that seldom send. Start at [Limit].
package slowstream

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

const (
	// MaxSendTime is the minimum time that a client has to read one message of a stream. It has one
	// second more for each MinSendBytes of the message. The checks add up to 2*CheckInterval.
	MaxSendTime = 30 * time.Second
	// MinSendBytes is the part of a message for which a client has one second more.
	MinSendBytes = 8 << 10
	// MaxReceiveTime is the minimum time that a client has to send the next request of a stream. An
	// import may read from a slow pipe. The checks add up to CheckInterval.
	MaxReceiveTime = 5 * time.Minute
	// CheckInterval is the time between two checks of a stream. The first check of a wait only records
	// it, and the last check may happen just before the time is over. Together they add up to one
	// interval.
	CheckInterval = 5 * time.Second
)

// Errors that end a stream.
var (
	// ErrReader means that the client does not read its stream.
	ErrReader = errors.New("client does not read its stream")
	// ErrSender means that the client does not send the next request.
	ErrSender = errors.New("client sends nothing on its stream")
)

// Limit runs a handler and returns its error. It returns ErrReader or ErrSender if the client is too slow.
func Limit(srv any, stream grpc.ServerStream, handler grpc.StreamHandler) error {
	limited := newStream(stream)
	return limited.run(srv, handler, func() error {
		// Read the limit before the duration: if another send starts in between, the duration is 0.
		allowed := limited.sendTime()
		if limited.sends.duration() >= allowed {
			return ErrReader
		}
		return limited.checkReceive()
	})
}

// LimitReceives is Limit without ErrReader.
func LimitReceives(srv any, stream grpc.ServerStream, handler grpc.StreamHandler) error {
	limited := newStream(stream)
	return limited.run(srv, handler, limited.checkReceive)
}

// Stream is a stream that measures how long it waits for its client. It is the one that the handler gets.
type Stream struct {
	grpc.ServerStream
	sends, receives waitMeter
	sent            atomic.Int64 // bytes of the previous message
	aborted         chan error   // receives why the stream ends before its handler
}

func newStream(stream grpc.ServerStream) *Stream {
	return &Stream{ServerStream: stream, aborted: make(chan error, 1)}
}

// Abort ends the stream with an error while its handler is running. It may be called once.
func (s *Stream) Abort(err error) { s.aborted <- err }

// run runs the handler in another goroutine and calls check every CheckInterval. It returns when the
// handler returns, check fails, or the stream is aborted.
func (s *Stream) run(srv any, handler grpc.StreamHandler, check func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- handler(srv, s) }()
	ticker := time.NewTicker(CheckInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case err := <-s.aborted:
			return err
		case <-ticker.C:
			if err := check(); err != nil {
				return err
			}
		}
	}
}

// checkReceive returns ErrSender if the current receive has lasted too long.
func (s *Stream) checkReceive() error {
	if s.receives.duration() >= MaxReceiveTime {
		return ErrSender
	}
	return nil
}

// sendTime returns the time that the current send may take. A client that reads steadily over a slow
// connection needs more time for a large message.
func (s *Stream) sendTime() time.Duration {
	return MaxSendTime + time.Duration(s.sent.Load()/MinSendBytes)*time.Second
}

// SendMsg sends a message. gRPC accepts a message as soon as less than 64 KiB of the previous messages
// wait for the client. So a send waits for the previous message, not for its own.
func (s *Stream) SendMsg(m any) error {
	s.sends.transitions.Add(1)
	defer s.sends.transitions.Add(1)
	err := s.ServerStream.SendMsg(m)
	if message, ok := m.(proto.Message); ok { // gRPC has just computed and cached the size.
		s.sent.Store(int64(proto.MarshalOptions{UseCachedSize: true}.Size(message)))
	}
	return err
}

// RecvMsg receives a message.
func (s *Stream) RecvMsg(m any) error {
	s.receives.transitions.Add(1)
	defer s.receives.transitions.Add(1)
	return s.ServerStream.RecvMsg(m)
}

// Interruptible returns stream with a SendMsg that also returns when ctx ends, with the cause. Unlike [Limit], it
// limits no time, and a stream that sends nothing needs no goroutine. The handler must then return, and must not
// send again.
func Interruptible(ctx context.Context, stream grpc.ServerStream) grpc.ServerStream {
	return &interruptible{stream, ctx}
}

type interruptible struct {
	grpc.ServerStream
	ctx context.Context
}

// SendMsg sends a message in another goroutine, which ends at the latest when gRPC ends the stream.
func (s *interruptible) SendMsg(m any) error {
	sent := make(chan error, 1)
	go func() { sent <- s.ServerStream.SendMsg(m) }()
	select {
	case err := <-sent:
		return err
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// waitMeter measures the duration of sends or of receives, of which there is one at a time. The handler
// increments transitions at the start and at the end of each, so that it is odd during a wait and
// different for each wait. This costs almost nothing, unlike a timer for each message.
//
// The handler only uses transitions. The goroutine that calls duration owns the other fields.
type waitMeter struct {
	transitions atomic.Uint64
	last        uint64        // transitions at the last call of duration
	waited      time.Duration // minimum time that transitions has been last and odd
}

// duration returns the minimum time that the current wait has lasted, or 0 if there is none. It must be
// called every CheckInterval.
func (w *waitMeter) duration() time.Duration {
	now := w.transitions.Load()
	if now != w.last || now%2 == 0 {
		w.last, w.waited = now, 0
	} else {
		w.waited += CheckInterval
	}
	return w.waited
}
