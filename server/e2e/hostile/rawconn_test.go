package hostile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// rawConn is a connection on which a test writes frames. Errors of writes mean that the server has closed it;
// the tests read the cause.
type rawConn struct {
	net.Conn

	frames *http2.Framer
	header bytes.Buffer
	hpack  *hpack.Encoder

	ended sync.WaitGroup
	mu    sync.Mutex
	// results has, by stream, the statuses of gRPC and the codes of resets. Stream 0 has the end of the connection.
	results map[uint32]string
	windows map[uint32]int // window updates of the server, by stream
	more    chan struct{}  // closed when there is another result or update
}

// dial connects without writing.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// dialHTTP2 connects and sends the preface and settings. It reads all frames.
func dialHTTP2(t *testing.T, address string, settings ...http2.Setting) *rawConn {
	t.Helper()
	c := &rawConn{Conn: dial(t, address), results: make(map[uint32]string), windows: make(map[uint32]int), more: make(chan struct{})}
	c.frames = http2.NewFramer(c.Conn, c.Conn)
	c.frames.AllowIllegalWrites = true
	c.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.hpack = hpack.NewEncoder(&c.header)
	if _, err := io.WriteString(c.Conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.frames.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	c.ended.Go(c.read)
	t.Cleanup(c.close)
	return c
}

// close ends the attack.
func (c *rawConn) close() {
	_ = c.Close()
	c.ended.Wait()
}

// read reads frames until the connection ends.
func (c *rawConn) read() {
	for {
		frame, err := c.frames.ReadFrame()
		if err != nil {
			if streamErr, ok := errors.AsType[http2.StreamError](err); ok {
				c.add(streamErr.StreamID, "bad frame")
				continue
			}
			c.add(0, "closed")
			return
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			c.add(0, "GOAWAY "+f.ErrCode.String())
		case *http2.WindowUpdateFrame:
			c.mu.Lock()
			c.windows[f.StreamID] += int(f.Increment)
			c.notify()
			c.mu.Unlock()
		case *http2.RSTStreamFrame:
			c.add(f.StreamID, "RST_STREAM "+f.ErrCode.String())
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if field.Name == "grpc-status" {
					c.add(f.StreamID, "grpc-status "+field.Value)
				}
			}
		}
	}
}

// add adds the first result of a stream.
func (c *rawConn) add(stream uint32, result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.results[stream] == "" {
		c.results[stream] = result
		c.notify()
	}
}

// notify wakes those that wait for more. The caller holds mu.
func (c *rawConn) notify() {
	close(c.more)
	c.more = make(chan struct{})
}

// result waits for the first result of a stream or of the connection.
func (c *rawConn) result(t *testing.T, stream uint32) string {
	t.Helper()
	for late := time.After(timeout); ; {
		c.mu.Lock()
		of, ofConn, more := c.results[stream], c.results[0], c.more
		c.mu.Unlock()
		switch {
		case of != "":
			return of
		case ofConn != "":
			return ofConn
		}
		select {
		case <-more:
		case <-late:
			return "nothing"
		}
	}
}

// encode encodes a header block of a gRPC call, with more fields as name, value.
func (c *rawConn) encode(method string, more ...string) []byte {
	c.header.Reset()
	fields := append([]string{
		":method", "POST", ":scheme", "http", ":path", method, ":authority", "localhost",
		"content-type", "application/grpc", "te", "trailers",
	}, more...)
	for i := 0; i < len(fields); i += 2 {
		_ = c.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // The buffer has no errors.
	}
	return bytes.Clone(c.header.Bytes())
}

// start starts a call of a method.
func (c *rawConn) start(stream uint32, method string, more ...string) error {
	return c.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.encode(method, more...), EndHeaders: true,
	})
}

// send writes bytes on a stream in frames of 16 KiB.
func (c *rawConn) send(stream uint32, b []byte, end bool) error {
	const frame = 16 << 10
	for len(b) > frame {
		if err := c.frames.WriteData(stream, false, b[:frame]); err != nil {
			return err
		}
		b = b[frame:]
	}
	return c.frames.WriteData(stream, end, b)
}

// message returns a gRPC message with this announced length.
func message(flag byte, length uint32, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, length), b...)
}

// closedBy waits until the server closes a connection, and returns "closed" and, if it wrote something before
// that, its first bytes.
func closedBy(t *testing.T, conn net.Conn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "open"
	}
	return "closed"
}

// Methods that attacks call.
const (
	load    = parleyv1.ConversationService_LoadConversation_FullMethodName
	appendM = parleyv1.ConversationService_AppendMessages_FullMethodName
	imports = parleyv1.ConversationService_ImportConversations_FullMethodName
	watch   = parleyv1.ConversationService_WatchConversations_FullMethodName
	export  = parleyv1.ConversationService_ExportConversations_FullMethodName
)

// loadRequest is an encoded LoadConversationRequest of conversation "a".
func loadRequest() []byte { return message(0, 3, []byte("\x0a\x01a")) }

// streamID returns the id of the i-th stream of a client.
func streamID(i int) uint32 { return uint32(2*i + 1) }

// tally counts equal results: "200 x closed".
func tally(results []string) string {
	for _, r := range results {
		if r != results[0] {
			return fmt.Sprint("different results: ", results)
		}
	}
	return fmt.Sprintf("%d x %s", len(results), results[0])
}
