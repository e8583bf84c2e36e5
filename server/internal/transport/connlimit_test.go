package transport

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// testTimeout is how long a test waits for an expected event. Only a failing test takes that long.
const testTimeout = time.Minute

// accepting serves a connLimiter and counts the connections that pass it.
type accepting struct {
	limiter  *connLimiter
	accepted chan net.Conn
}

func startAccepting(t *testing.T, limit, perAddress int, log *slog.Logger) *accepting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &accepting{limiter: limitConns(l, log), accepted: make(chan net.Conn, 2*limit)}
	a.limiter.limit, a.limiter.perAddress = limit, perAddress
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := a.limiter.Accept()
			if err != nil {
				return
			}
			a.accepted <- conn
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return a
}

// dial connects from a local address and returns the server's end, or nil if the server refused the connection.
func (a *accepting) dial(t *testing.T, from string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	conn, err := dialer.DialContext(t.Context(), "tcp", a.limiter.Addr().String())
	if err != nil {
		t.Skipf("connect from %s: %v", from, err)
	}
	t.Cleanup(func() { conn.Close() })
	refused := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		refused <- err
	}()
	select {
	case accepted := <-a.accepted:
		t.Cleanup(func() { accepted.Close() })
		return accepted
	case err := <-refused:
		if errors.Is(err, io.EOF) {
			t.Error("refused connection was closed, want a reset")
		}
		return nil
	case <-time.After(testTimeout):
		t.Fatal("the connection was neither accepted nor refused")
		return nil
	}
}

// TestConnLimit checks the limits of all connections and of one address, and that closed connections do not
// count.
func TestConnLimit(t *testing.T) {
	t.Parallel()
	const limit, perAddress, one, other = 8, 6, "127.0.0.1", "127.0.0.2"
	var log bytes.Buffer // Accept writes it; refusals are read after that.
	a := startAccepting(t, limit, perAddress, slog.New(slog.NewTextHandler(&log, nil)))
	var open []net.Conn
	for range perAddress {
		open = append(open, a.dial(t, one))
	}
	refused := func(from string) {
		t.Helper()
		if a.dial(t, from) != nil {
			t.Errorf("connection from %s above the limit was accepted", from)
		}
	}
	refused(one)
	for range limit - perAddress {
		if a.dial(t, other) == nil {
			t.Errorf("connection from %s was refused because of those of %s", other, one)
		}
	}
	refused(other)
	open[0].Close()
	for start := time.Now(); a.dial(t, one) == nil; { // The search for closed connections has an interval.
		if time.Since(start) > testTimeout {
			t.Fatal("connection was refused after another was closed")
		}
	}
	refused(one)
	if n := strings.Count(log.String(), "connections refused; limit reached"); n != 1 {
		t.Errorf("%d warnings in a minute, want 1: %s", n, log.String())
	}
}

func TestConnLimitOfFiles(t *testing.T) {
	t.Parallel()
	for files, want := range map[uint64]int{0: minConns, 1024: 256, 4096: 1792, 1 << 20: maxConns, 1 << 63: maxConns} {
		if got := connLimit(files); got != want {
			t.Errorf("connLimit(%d) = %d, want %d", files, got, want)
		}
	}
}
