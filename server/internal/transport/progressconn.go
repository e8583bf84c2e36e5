package transport

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// progressListener accepts connections whose write deadlines end only writes without progress: the
// client has acknowledged nothing since the previous deadline. The duration of a write alone does
// not show whether a client reads: when a send buffer is full, the kernel lets a writer continue
// only when a third of the buffer is free, which may be more than a megabyte.
type progressListener struct {
	net.Listener

	// ackedBytes returns how many bytes the client of a connection has acknowledged.
	ackedBytes func(syscall.Conn) uint64
}

// Accept waits for the next connection.
func (l *progressListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &progressConn{TCPConn: tcp, ackedBytes: l.ackedBytes}, nil
	}
	return conn, err
}

// progressConn is a connection of a progressListener.
type progressConn struct {
	*net.TCPConn

	ackedBytes func(syscall.Conn) uint64
	limit      atomic.Int64 // the time from the setting of the deadline to the deadline
	// lastAcked is ackedBytes at the last deadline that passed. Write owns it; only one Write runs
	// at a time.
	lastAcked uint64
}

// SetWriteDeadline sets how long the client may acknowledge nothing, as a deadline. A Write without
// progress ends between the deadline and the same time again later: the first deadline that passes
// only records what was acknowledged.
func (c *progressConn) SetWriteDeadline(t time.Time) error {
	c.limit.Store(int64(time.Until(t)))
	return c.TCPConn.SetWriteDeadline(t)
}

// SetDeadline sets a deadline for reads and writes that progress does not extend.
func (c *progressConn) SetDeadline(t time.Time) error {
	c.limit.Store(0)
	return c.TCPConn.SetDeadline(t)
}

// Write writes p. If the deadline passes and the client has acknowledged data since the previous
// deadline, Write extends the deadline by the same time.
func (c *progressConn) Write(p []byte) (written int, err error) {
	for {
		n, err := c.TCPConn.Write(p[written:])
		written += n
		limit := time.Duration(c.limit.Load())
		if !errors.Is(err, os.ErrDeadlineExceeded) || limit <= 0 {
			return written, err
		}
		before := c.lastAcked
		if c.lastAcked = c.ackedBytes(c.TCPConn); c.lastAcked == before {
			return written, err
		}
		if err := c.TCPConn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return written, err
		}
	}
}
