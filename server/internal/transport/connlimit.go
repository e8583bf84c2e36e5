package transport

import (
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"
)

const (
	// maxConns is the maximum number of connections of a listener. A connection without calls needs about
	// 15 KiB. The limit is lower if the process may open few files, see connLimit.
	maxConns = 16384
	// defaultOpenFiles is the number of files that the process may open if the limit is unknown.
	defaultOpenFiles = 4096
	// minConns is the limit if the process may open almost no files.
	minConns = 16
	// reservedFiles is the number of files that connections leave to the store, the interaction log and agents.
	reservedFiles = 512
	// connSweepInterval is the minimum time between two searches for closed connections at the limit.
	connSweepInterval = 10 * time.Millisecond
	// connWarningInterval is the minimum time between two warnings about refused connections.
	connWarningInterval = time.Minute
)

// connLimiter is a listener that closes new connections while its limit is reached, so that clients get an
// error at once. One address may have three quarters of all connections, so that others can connect.
//
// It does not wrap connections: gRPC needs those of package net, to set a time limit for unacknowledged data
// and to read without a buffer for each connection. So the limiter cannot see when a connection is closed.
// It searches for closed ones when a limit is reached.
type connLimiter struct {
	net.Listener

	log               *slog.Logger
	limit, perAddress int

	// Only Accept, which one goroutine calls, uses these.
	conns       map[net.Conn]netip.Addr
	addresses   map[netip.Addr]int
	lastSweep   time.Time
	refused     int       // since the last warning
	lastWarning time.Time // zero if there was none
}

// limitConns returns l with a limit on its connections.
func limitConns(l net.Listener, log *slog.Logger) *connLimiter {
	limit := connLimit(openFileLimit())
	return &connLimiter{
		Listener: l, log: log, limit: limit, perAddress: limit - limit/4,
		conns: make(map[net.Conn]netip.Addr), addresses: make(map[netip.Addr]int),
	}
}

// connLimit returns the maximum number of connections of each of the two listeners if the process may open
// this number of files.
func connLimit(files uint64) int {
	usable := files - min(files, reservedFiles)
	return int(max(min(usable/2, maxConns), minConns))
}

// Accept waits for the next connection within the limits.
func (l *connLimiter) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.admit(conn, time.Now()) {
			return conn, nil
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // A reset leaves no state in the kernel.
		}
		_ = conn.Close()
	}
}

// admit records a connection, or returns false if a limit is reached.
func (l *connLimiter) admit(conn net.Conn, now time.Time) bool {
	address := remoteAddress(conn)
	if l.isFull(address) && now.Sub(l.lastSweep) >= connSweepInterval {
		l.lastSweep = now
		l.sweep()
	}
	if l.isFull(address) {
		l.refused++
		if l.lastWarning.IsZero() || now.Sub(l.lastWarning) >= connWarningInterval {
			l.log.Warn("connections refused; limit reached", "listener", l.Addr().String(), "address", address.String(),
				"limit", l.limit, "limit_per_address", l.perAddress, "count", l.refused)
			l.lastWarning, l.refused = now, 0
		}
		return false
	}
	l.conns[conn] = address
	l.addresses[address]++
	return true
}

// isFull reports whether a limit is reached for connections from this address. The zero address is that of
// all clients of a Unix socket, for which only the common limit applies.
func (l *connLimiter) isFull(address netip.Addr) bool {
	return len(l.conns) >= l.limit || address.IsValid() && l.addresses[address] >= l.perAddress
}

// sweep removes the connections that are closed.
func (l *connLimiter) sweep() {
	for conn, address := range l.conns {
		if !isClosed(conn) {
			continue
		}
		delete(l.conns, conn)
		l.addresses[address]--
		if l.addresses[address] == 0 {
			delete(l.addresses, address)
		}
	}
}

// isClosed reports whether the server has closed a connection.
func isClosed(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// remoteAddress returns the IP address of a client, or the zero address for a Unix socket.
func remoteAddress(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
