package transport

import (
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/nettest"
)

// testTimeout is how long a test waits for an expected event. Only a failing test takes that long.
const testTimeout = time.Minute

// TestProgressConn writes large replies in parts, each with a deadline. A client that reads a little
// before each deadline gets the complete reply. A client that reads nothing does not.
func TestProgressConn(t *testing.T) {
	t.Parallel()
	const size, part, readSize = 8 << 20, 64 << 10, 256 << 10 // The socket buffers hold less than size.
	for _, reads := range []bool{true, false} {
		listener, err := listenHTTP(t.Context(), "127.0.0.1:0", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		conn, readCount := nettest.DialSmallBuffer(t, listener.Addr().String()), 0
		listener.ackedBytes = func(server syscall.Conn) uint64 {
			if reads {
				readCount++
				if _, err := io.CopyN(io.Discard, conn, readSize); err != nil {
					t.Errorf("read %d: %v", readCount, err)
				}
				for end := time.Now().Add(testTimeout); readAckedBytes(server) < uint64(readCount*readSize) && time.Now().Before(end); {
					runtime.Gosched() // The acknowledgement is in flight.
				}
			}
			return readAckedBytes(server)
		}
		ended := make(chan error, 1)
		server := &http.Server{ReadHeaderTimeout: testTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
		serving.Go(func() { _ = server.Serve(listener) })
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		err = <-ended
		if reads {
			rest, readErr := io.Copy(io.Discard, conn)
			if got := int64(readCount*readSize) + rest; err != nil || readErr != nil || got < size || readCount < 2 {
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
