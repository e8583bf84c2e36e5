package hostile

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestGRPC attacks the gRPC listener.
func TestGRPC(t *testing.T) {
	t.Parallel()
	skipShort(t)
	for _, a := range []attack{
		{"rapid reset", rapidReset, "grpc-status 0"},
		{"CONTINUATION flood", continuationFlood, "closed"},
		{"ping flood", pingFlood, "GOAWAY ENHANCE_YOUR_CALM"},
		{"settings flood", settingsFlood, "grpc-status 0"},
		{"length prefix too long", raw(message(0, 100, []byte("\x0a\x01a"))), "grpc-status 13"},
		{"length prefix too short", raw(message(0, 1, []byte("\x0a\x01a"))), "grpc-status 13"},
		{"length prefix huge", raw(message(0, 1<<32-1, nil)), "grpc-status 8"},
		{"length prefix above the limit", raw(message(0, 4<<20+1, nil)), "grpc-status 8"},
		{"malformed request", raw(message(0, 4, []byte("\xff\xff\xff\xff"))), "grpc-status 3"},
		{"two requests of a unary call", raw(append(loadRequest(), loadRequest()...)), "grpc-status 13"},
		{"unknown flag of a message", raw(message(7, 3, []byte("\x0a\x01a"))), "grpc-status 13"},
		{"12 MiB of metadata", largeMetadata("big", strings.Repeat("x", 12<<20)), "closed"},
		{"20,000 small headers", largeMetadata(manyHeaders()...), "closed"},
		{"header compression bomb", hpackBomb, "closed"},
		{"gzip bomb", gzipBomb, "grpc-status 8"},
		{"unknown compression", raw(message(1, 3, []byte("\x0a\x01a")), "grpc-encoding", "made-up"), "grpc-status 12"},
		{"compressed flag without compression", raw(message(1, 3, []byte("\x0a\x01a"))), "grpc-status 13"},
		{"timeout of 11,000 years", raw(loadRequest(), "grpc-timeout", "99999999H"), "grpc-status 0"},
		{"timeout that is no number", raw(loadRequest(), "grpc-timeout", "soon"), "grpc-status 13"},
		{"data on a closed stream", dataOnClosed, "grpc-status 0"},
		{"data on an idle stream", dataOnIdle, "grpc-status 0"},
		{"window overflow of the connection", overflow(0), "grpc-status 0"},
		{"window overflow of a stream", overflow(1), "grpc-status 0"},
		{"more data than the window", tooMuchData, "RST_STREAM FLOW_CONTROL_ERROR"},
		{"5,000 streams", manyStreams, "RST_STREAM REFUSED_STREAM"},
		{"garbage instead of a preface", garbage(strings.Repeat("\x00\xff", 1<<20)), "closed"},
		{"HTTP/1.1", garbage("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "closed"},
		{"TLS", garbage("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 505)), "closed"},
		{"garbage after the preface", garbage(http2.ClientPreface + strings.Repeat("\xff", 1<<20)), "closed"},
		{"connections without a preface", halfOpen(""), "200 x closed"},
		{"connections without settings", halfOpen(http2.ClientPreface), "200 x closed"},
		{"readers that do not read", slowReaders, "1000 x open"},
		{"senders that do not continue", slowSenders, "open or refused"},
		{"empty messages", bombs(bytes.Repeat([]byte("\x12\x00"), 2<<20-10)), "8 x refused"},
		{"messages with faults", bombs(bytes.Repeat([]byte("\x12\x00"), 350_000)), "8 x refused"},
		{"nulls", bombs(nulls()), "8 x refused"},
	} {
		t.Run(a.name, func(t *testing.T) { a.test(t, false) })
	}
}

// raw sends bytes as the request of a LoadConversation call, with metadata.
func raw(request []byte, headers ...string) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		c := dialHTTP2(t, s.grpcAddr)
		defer c.close()
		_ = c.start(1, load, headers...)
		_ = c.send(1, request, true)
		return c.result(t, 1)
	}
}

// ok makes a call on a connection and returns its result.
func (c *rawConn) ok(t *testing.T, stream uint32) string {
	t.Helper()
	_ = c.start(stream, load)
	_ = c.send(stream, loadRequest(), true)
	return c.result(t, stream)
}

// rapidReset starts and resets calls (CVE-2023-44487).
func rapidReset(t *testing.T, s *server) string {
	t.Helper()
	const calls = 30_000
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	for i := range calls {
		if c.start(streamID(i), load) != nil || c.frames.WriteRSTStream(streamID(i), http2.ErrCodeCancel) != nil {
			break
		}
	}
	return c.ok(t, streamID(calls))
}

// continuationFlood sends headers without an end (CVE-2023-45288).
func continuationFlood(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	_ = c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(load)})
	for range 20_000 {
		if c.frames.WriteContinuation(1, false, c.encode(load, "x", strings.Repeat("y", 4000))) != nil {
			break
		}
	}
	return c.result(t, 1)
}

func pingFlood(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	for range 100_000 {
		if c.frames.WritePing(false, [8]byte{}) != nil {
			break
		}
	}
	return c.result(t, 0)
}

func settingsFlood(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	for range 100_000 {
		if c.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65_535}) != nil {
			break
		}
	}
	return c.ok(t, 1)
}

// largeMetadata sends a call with large metadata.
func largeMetadata(fields ...string) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		c := dialHTTP2(t, s.grpcAddr)
		defer c.close()
		c.sendHeaders(c.encode(load, fields...))
		return c.result(t, 1)
	}
}

// sendHeaders sends a header block on stream 1 in as many frames as it needs.
func (c *rawConn) sendHeaders(block []byte) {
	const frame = 16 << 10
	first := block[:min(frame, len(block))]
	_ = c.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: first, EndHeaders: len(first) == len(block),
	})
	for block = block[len(first):]; len(block) > 0; {
		next := block[:min(frame, len(block))]
		block = block[len(next):]
		if c.frames.WriteContinuation(1, len(block) == 0, next) != nil {
			return
		}
	}
}

func manyHeaders() []string {
	var fields []string
	for range 20_000 {
		fields = append(fields, "a", "b")
	}
	return fields
}

// hpackBomb refers 100,000 times to a header of 4,000 bytes, which takes one byte each time.
func hpackBomb(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	block := c.encode(load, "x", strings.Repeat("y", 4000))
	const newestEntry = 0x80 | 62
	c.sendHeaders(append(block, bytes.Repeat([]byte{newestEntry}, 100_000)...))
	return c.result(t, 1)
}

// gzipBomb sends 60 KiB that decompress to 60 MiB.
func gzipBomb(t *testing.T, s *server) string {
	t.Helper()
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	for zeros := make([]byte, 1<<20); compressed.Len() < 60_000; {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return raw(message(1, uint32(compressed.Len()), compressed.Bytes()),
		"grpc-encoding", "gzip")(t, s)
}

func dataOnClosed(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	if got := c.ok(t, 1); got != "grpc-status 0" {
		return "first call: " + got
	}
	for range 1000 {
		_ = c.send(1, make([]byte, 1000), false)
	}
	return c.ok(t, 3)
}

func dataOnIdle(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	_ = c.send(101, make([]byte, 1000), false)
	return c.ok(t, 103)
}

// overflow increments the window of a stream, or of the connection, above the maximum.
func overflow(stream uint32) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		c := dialHTTP2(t, s.grpcAddr)
		defer c.close()
		_ = c.start(1, load)
		for range 3 {
			_ = c.frames.WriteWindowUpdate(stream, 1<<31-1)
		}
		_ = c.send(1, loadRequest(), true)
		return c.result(t, 1)
	}
}

// tooMuchData sends more than the windows allow.
func tooMuchData(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	_ = c.start(1, imports)
	for range 1000 {
		if c.send(1, make([]byte, 16<<10), false) != nil {
			break
		}
	}
	return c.result(t, 1)
}

// manyStreams starts more calls than a connection may have.
func manyStreams(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	const streams = 5000
	for i := range streams {
		_ = c.start(streamID(i), appendM)
	}
	return c.result(t, streamID(streams-1))
}

// halfOpen opens connections and sends only text.
func halfOpen(text string) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		return openMany(t, s.grpcAddr, text)
	}
}

// openMany opens connections, sends text on each and waits until the server has closed all.
func openMany(t *testing.T, address, text string) string {
	t.Helper()
	conns, results := make([]net.Conn, 200), make([]string, 200)
	for i := range conns {
		conns[i] = dial(t, address)
		_, _ = io.WriteString(conns[i], text)
	}
	for i, conn := range conns {
		results[i] = closedBy(t, conn)
	}
	return tally(results)
}

// garbage writes bytes to a new connection.
func garbage(text string) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		conn := dial(t, s.grpcAddr)
		_, _ = io.WriteString(conn, text)
		return closedBy(t, conn)
	}
}

// slowReaders starts exports and watches with a window of 0 bytes.
func slowReaders(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	defer c.close()
	const streams = 1000
	for i := range streams {
		method, request := watch, message(0, 3, []byte("\x0a\x01a"))
		if i%2 == 0 {
			method, request = export, message(0, 0, nil)
		}
		_ = c.start(streamID(i), method)
		_ = c.send(streamID(i), request, true)
	}
	for range 100 {
		if err := s.call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return c.resultsSoFar(streams)
}

// resultsSoFar counts the results of the first streams: "2 x grpc-status 8, 1 x open".
func (c *rawConn) resultsSoFar(streams int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	results := make([]string, streams)
	for i := range streams {
		results[i] = cmp.Or(c.results[streamID(i)], "open")
	}
	return tally(results)
}

// slowSenders starts calls and sends most of a request on each.
func slowSenders(t *testing.T, s *server) string {
	t.Helper()
	c := dialHTTP2(t, s.grpcAddr)
	defer c.close()
	const streams = 1000
	for i := range streams {
		_ = c.start(streamID(i), appendM)
		_ = c.send(streamID(i), message(0, 4<<20, make([]byte, 50<<10)), false)
	}
	for range 100 {
		if err := s.call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, result := range c.results {
		if result != "grpc-status 4" { // The server ends slow senders while other calls wait.
			return fmt.Sprintf("stream %d: %s", i, result)
		}
	}
	return "open or refused"
}

// nulls returns an encoded AppendMessagesRequest with the smallest values of structured data that are valid.
func nulls() []byte {
	list := bytes.Repeat([]byte{0x0a, 2, 8, 0}, 1<<20-100)
	b := list
	for _, tag := range []byte{0x32, 0x12, 0x2a, 0x12} { // list_value, value, structured_data, messages
		b = append(binary.AppendUvarint([]byte{tag}, uint64(len(b))), b...)
	}
	return b
}

// rawCodec encodes requests of type []byte as they are.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// bombs calls AppendMessages with the same request many times at once, over two connections. The server refuses
// it because it is too large or invalid, or because others use the memory.
func bombs(request []byte) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		const conns, calls = 2, 4
		var running sync.WaitGroup
		results := make([]string, conns*calls)
		for i := range conns {
			conn, err := grpc.NewClient(s.grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			for j := range calls {
				running.Go(func() {
					err := conn.Invoke(t.Context(), appendM, request, new(parleyv1.AppendMessagesResponse),
						grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(protocodec.Name)}))
					result := status.Code(err).String()
					if result == "ResourceExhausted" || result == "InvalidArgument" {
						result = "refused"
					}
					results[i*calls+j] = result
				})
			}
		}
		running.Wait()
		return tally(results)
	}
}
