package main

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// steadyListener accepts connections whose write deadlines end only writes to clients that take
// nothing. A full send buffer lets a writer continue when a third of it is free. That may be more
// than a megabyte, so the time of a write does not say whether its client reads.
type steadyListener struct {
	net.Listener

	taken func(syscall.Conn) uint64 // How many bytes the client of a connection has acknowledged.
}

// Accept waits for the next connection.
func (l *steadyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &steadyConn{TCPConn: tcp, read: l.taken}, nil
	}
	return conn, err
}

// steadyConn is a connection of a steadyListener.
type steadyConn struct {
	*net.TCPConn

	read  func(syscall.Conn) uint64
	limit atomic.Int64 // The time from the setting of the deadline to the deadline.
	taken uint64       // What had been taken when a deadline passed last; for Write, of which there is one at a time.
}

// SetWriteDeadline sets how long the client may take nothing, in the form of a deadline. It ends
// a Write up to as long again later, since the first one that passes shows only what was taken.
func (c *steadyConn) SetWriteDeadline(t time.Time) error {
	c.limit.Store(int64(time.Until(t)))
	return c.TCPConn.SetWriteDeadline(t)
}

// SetDeadline sets a deadline for reads and writes, whatever the client takes.
func (c *steadyConn) SetDeadline(t time.Time) error {
	c.limit.Store(0)
	return c.TCPConn.SetDeadline(t)
}

// Write writes. If the deadline passes and the client has taken something since another one
// passed, the write has the same time again.
func (c *steadyConn) Write(p []byte) (written int, err error) {
	for {
		n, err := c.TCPConn.Write(p[written:])
		written += n
		limit := time.Duration(c.limit.Load())
		if !errors.Is(err, os.ErrDeadlineExceeded) || limit <= 0 {
			return written, err
		}
		before := c.taken
		if c.taken = c.read(c.TCPConn); c.taken == before {
			return written, err
		}
		if err := c.TCPConn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return written, err
		}
	}
}
