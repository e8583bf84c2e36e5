package transport

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/nettest"
)

// TestProgressConn writes large replies in parts, each with a deadline. A client that reads a little
// before each deadline gets the complete reply. A client that reads nothing does not.
func TestProgressConn(t *testing.T) {
	t.Parallel()
	const size, part, readSize = 8 << 20, 64 << 10, 256 << 10 // The socket buffers hold less than size.
	for _, reads := range []bool{true, false} {
		listener, err := listenHTTP(t.Context(), "127.0.0.1:0", time.Minute, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		conn, readCount, received := nettest.DialSmallBuffer(t, listener.Addr().String()), 0, int64(0)
		listener.ackedBytes = func(server syscall.Conn) uint64 {
			if reads {
				readCount++
				received += readUpTo(t, conn, readSize)
				for end := time.Now().Add(testTimeout); readAckedBytes(server) < uint64(received) && time.Now().Before(end); {
					runtime.Gosched() // The acknowledgement is in flight.
				}
			}
			return readAckedBytes(server)
		}
		ended := make(chan error, 1)
		server := &http.Server{ReadHeaderTimeout: testTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request,
		) {
			control := http.NewResponseController(w)
			var err error
			for n := 0; n < size && err == nil; n += part {
				_ = control.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
				_, err = w.Write(make([]byte, part))
			}
			_ = control.SetWriteDeadline(time.Time{})
			ended <- err
		})}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(listener) })
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		err = <-ended
		if reads {
			rest, readErr := io.Copy(io.Discard, conn)
			if got := received + rest; err != nil || readErr != nil || got < size || readCount < 2 {
				t.Errorf("slow client read %d bytes at %d deadlines, errors %v and %v; want %d bytes or more at 2 deadlines or more",
					got, readCount, err, readErr, size)
			}
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write to a client that reads nothing: %v, want %v", err, os.ErrDeadlineExceeded)
		}
		_ = server.Close()
		serving.Wait()
	}
}

// readUpTo reads n bytes, or fewer if the server has not written them. The server writes no further data in the
// meantime, because its Write calls this function: without a limit on time the test would hang.
func readUpTo(t *testing.T, conn net.Conn, n int64) int64 {
	t.Helper()
	err := conn.SetReadDeadline(time.Now().Add(time.Second))
	read, readErr := io.CopyN(io.Discard, conn, n)
	if err := errors.Join(err, conn.SetReadDeadline(time.Time{})); err != nil {
		t.Error(err)
	}
	if readErr != nil && !errors.Is(readErr, os.ErrDeadlineExceeded) {
		t.Errorf("read of %d bytes: %v", n, readErr)
	}
	return read
}
