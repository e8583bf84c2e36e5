package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSteadyConnection writes large replies, in parts that have a deadline each. A client that
// takes a little before each deadline gets all of its reply; one that takes nothing does not.
func TestSteadyConnection(t *testing.T) {
	t.Parallel()
	const size, part, sip = 8 << 20, 64 << 10, 256 << 10 // The buffers hold less than size.
	for _, reads := range []bool{true, false} {
		listener, err := listenHTTP(t.Context(), "127.0.0.1:0", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		conn, sips := dialSlow(t, listener.Addr().String()), 0
		listener.taken = func(server syscall.Conn) uint64 {
			if reads {
				sips++
				if _, err := io.CopyN(io.Discard, conn, sip); err != nil {
					t.Errorf("sip %d: %v", sips, err)
				}
				for end := time.Now().Add(patience); readTaken(server) < uint64(sips*sip) && time.Now().Before(end); {
					runtime.Gosched() // The acknowledgement is under way.
				}
			}
			return readTaken(server)
		}
		ended := make(chan error, 1)
		server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			control := http.NewResponseController(w)
			var err error
			for n := 0; n < size && err == nil; n += part {
				_ = control.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
				_, err = w.Write(make([]byte, part))
			}
			_ = control.SetWriteDeadline(time.Time{})
			ended <- err
		})}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(listener) }) // Until Close.
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		err = <-ended
		if reads {
			rest, readErr := io.Copy(io.Discard, conn)
			if got := int64(sips*sip) + rest; err != nil || readErr != nil || got < size || sips < 2 {
				t.Errorf("a client that reads got %d bytes and took %d times a little: %v, %v", got, sips, err, readErr)
			}
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that reads nothing ended its reply with %v, want %v", err, os.ErrDeadlineExceeded)
		}
		_ = server.Close()
		serving.Wait()
	}
}

// dialSlow connects with a small buffer.
func dialSlow(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	small := net.Dialer{KeepAlive: -1, Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		err := conn.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10) })
		return errors.Join(err, failed)
	}}
	conn, err := small.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("the connection is a %T", conn)
	}
	return tcp
}
