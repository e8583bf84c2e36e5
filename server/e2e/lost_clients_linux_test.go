package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/nettest"
)

// rawWatch is a watch over HTTP with a small receive buffer. It reads only when the test calls it.
type rawWatch struct {
	conn  *net.TCPConn
	lines *bufio.Reader
}

// startRawWatch watches two conversations: id, which is deleted when the stream ends, and noise-id.
func startRawWatch(t *testing.T, d *httpServer, id string) *rawWatch {
	t.Helper()
	conn := nettest.DialSmallBuffer(t, strings.TrimPrefix(d.url, "http://"))
	path := fmt.Sprintf("/v1/watch?conversationIds=%s&conversationIds=noise-%[1]s&deleteAfterDisconnect=0.1s", id)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close() // Close it first: closing the body would read it to its end.
		reply.Body.Close()
	})
	if reply.StatusCode != http.StatusOK {
		t.Fatal(reply.Status)
	}
	w := &rawWatch{conn: conn, lines: bufio.NewReader(reply.Body)}
	w.readUntil(t, "HEARTBEAT")
	return w
}

// readUntil reads up to a line that contains text.
func (w *rawWatch) readUntil(t *testing.T, text string) {
	t.Helper()
	if err := w.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		t.Fatal(err)
	}
	for {
		line, err := w.lines.ReadString('\n')
		if err != nil {
			t.Fatalf("reading up to %q: %v", text, err)
		}
		if strings.Contains(line, text) {
			return
		}
	}
}

// overflow appends more bytes than the buffers of a connection hold.
func overflow(t *testing.T, d *httpServer, id string) {
	t.Helper()
	for range 40 {
		add(t, d.server, "noise-"+id, userMessage(strings.Repeat("x", 200_000)))
	}
}

// TestSlowWatcherOverHTTP: a watcher that reads nothing keeps its stream and its ephemeral
// conversation several times longer than the server takes to detect a lost client.
func TestSlowWatcherOverHTTP(t *testing.T) {
	t.Parallel()
	skipShort(t)
	const keepalive = time.Second
	d := startHTTPServer(t, t.TempDir(), "--store=memory", "--keepalive-time="+keepalive.String())
	w := startRawWatch(t, d, "c")
	add(t, d.server, "c", userMessage("hello"))
	overflow(t, d, "c")
	ticker := time.NewTicker(keepalive / 10)
	defer ticker.Stop()
	for end := time.Now().Add(5 * keepalive); time.Now().Before(end); <-ticker.C {
		if _, err := d.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	add(t, d.server, "c", userMessage("after that"))
	w.readUntil(t, "after that")
}

// TestLostWatcherOverHTTP: the server detects a watcher whose network is cut, with or without data
// in its buffers, and deletes the watcher's ephemeral conversation.
func TestLostWatcherOverHTTP(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		cut  func(t *testing.T, d *httpServer, w *rawWatch, id string)
	}{
		{"idle", func(t *testing.T, _ *httpServer, w *rawWatch, _ string) { t.Helper(); nettest.DropPackets(t, w.conn) }},
		{"unacknowledged data", func(t *testing.T, d *httpServer, w *rawWatch, id string) {
			t.Helper()
			nettest.DropPackets(t, w.conn)
			add(t, d.server, id, userMessage("unacknowledged"))
		}},
		{"a closed window", func(t *testing.T, d *httpServer, w *rawWatch, id string) {
			t.Helper()
			overflow(t, d, id)
			nettest.DropPackets(t, w.conn)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := startHTTPServer(t, t.TempDir(), "--store=memory", "--keepalive-time=1s")
			w := startRawWatch(t, d, "c")
			add(t, d.server, "c", userMessage("hello"))
			w.readUntil(t, "hello")
			test.cut(t, d, w, "c")
			start := time.Now()
			d.await(t, "ephemeral conversation deleted", "conversation_id=c")
			t.Logf("found after %v", time.Since(start))
		})
	}
}
