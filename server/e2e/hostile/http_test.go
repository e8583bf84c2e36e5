package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestHTTP attacks the HTTP listener.
func TestHTTP(t *testing.T) {
	t.Parallel()
	skipShort(t)
	const appendPath = "POST /v1/conversations/other/messages HTTP/1.1\r\nHost: localhost\r\n"
	const get = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	for _, a := range []attack{
		{"HTTP/2", exchange(http2.ClientPreface), "403"},
		{"garbage", exchange(strings.Repeat("\x00\xff", 1<<20)), "431"},
		{"TLS", exchange("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 505)), "400"},
		{"headers of 12 MiB", exchange(get + "X: " + strings.Repeat("x", 12<<20) + "\r\n\r\n"), "431"},
		{"20,000 headers", exchange(get + strings.Repeat("X: y\r\n", 20_000) + "\r\n"), "431"},
		{"slow headers", slowHeaders, "200 x closed"},
		{"slow bodies", slowBodies, "200 x open"},
		{"two lengths", exchange(appendPath + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde"), "400"},
		{"negative length", exchange(appendPath + "Content-Length: -1\r\n\r\n"), "400"},
		{"length with a plus", exchange(appendPath + "Content-Length: +5\r\n\r\nabcde"), "400"},
		{"length that is too large", exchange(appendPath + "Content-Length: 9223372036854775807\r\n\r\n"), "413"},
		{"unknown transfer encoding", exchange(appendPath + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), "501"},
		{"two transfer encodings", exchange(appendPath + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"), "501"},
		{"space before a colon", exchange(get + "Content-Length : 5\r\n\r\nabcde"), "400"},
		{"folded header", exchange(get + "X: y\r\n Transfer-Encoding: chunked\r\n\r\n"), "200"},
		{"no host", exchange("GET /healthz HTTP/1.1\r\n\r\n"), "400"},
		{"two hosts", exchange(get + "Host: evil\r\n\r\n"), "400"},
		{"smuggled request", smuggled, "400, closed"},
		{"chunks of garbage", exchange(appendPath + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("zz\r\n", 1000)), "400"},
		{"huge chunk", exchange(appendPath + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), "400"},
		{"deep JSON", post(strings.Repeat("[", 4<<20-100)), "413"},
		{"deep JSON objects", post(strings.Repeat(`{"messages":`, 300_000)), "400"},
		{"text that is not UTF-8", post(`{"messages": [{"role": "ROLE_USER", "content": "` + "\xff\xfe" + `"}]}`), "400"},
		{"body above the limit", post(strings.Repeat(" ", 5<<20)), "413"},
		{"many small values", post(`{"messages": [` + strings.Repeat("{},", 500_000) + `{}]}`), "413"},
		{"other method", exchange("BREW /v1/conversations HTTP/1.1\r\nHost: localhost\r\n\r\n"), "405"},
		{"path of 12 KiB", exchange("GET /" + strings.Repeat("../", 4<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n"), "404"},
		{"readers of events that do not read", silentReaders, "200 x open"},
	} {
		t.Run(a.name, func(t *testing.T) { a.test(t, false) })
	}
}

// exchange sends bytes and returns the code of the response.
func exchange(request string) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string {
		t.Helper()
		conn := dial(t, s.http)
		go func() { _, _ = io.WriteString(conn, request) }() // The server may respond before it has read all.
		return responseCode(t, bufio.NewReader(conn), conn)
	}
}

// responseCode returns the code of the next response, or "closed".
func responseCode(t *testing.T, r *bufio.Reader, conn net.Conn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		if timeoutErr, ok := errors.AsType[net.Error](err); ok && timeoutErr.Timeout() {
			return "nothing"
		}
		return "closed"
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return fmt.Sprint(response.StatusCode)
}

// post sends a body as an append.
func post(body string) func(*testing.T, *server) string {
	return exchange(fmt.Sprintf("POST /v1/conversations/other/messages HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
}

// slowHeaders sends the first part of the headers on many connections.
func slowHeaders(t *testing.T, s *server) string {
	t.Helper()
	return openMany(t, s.http, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
}

// slowBodies sends the first part of a body on many connections, and closes them.
func slowBodies(t *testing.T, s *server) string {
	t.Helper()
	return hold(t, s, "POST /v1/conversations/other/messages HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat(" ", 100_000))
}

// silentReaders watches without reading.
func silentReaders(t *testing.T, s *server) string {
	t.Helper()
	return hold(t, s, "GET /v1/watch?conversationIds=other HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
}

// hold sends text on many connections and leaves them open while the other client makes calls.
func hold(t *testing.T, s *server, text string) string {
	t.Helper()
	conns, results := make([]net.Conn, 200), make([]string, 200)
	for i := range conns {
		conns[i] = dial(t, s.http)
		_, _ = io.WriteString(conns[i], text)
	}
	for range 100 {
		if err := s.call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, conn := range conns {
		results[i] = "open"
		// The write succeeds unless the server has closed the connection.
		if _, err := io.WriteString(conn, " "); err != nil {
			results[i] = "closed"
		}
		_ = conn.Close()
	}
	return tally(results)
}

// smuggled sends a request whose length and transfer encoding differ, with another request in its body. The
// server must not answer that one.
func smuggled(t *testing.T, s *server) string {
	t.Helper()
	conn := dial(t, s.http)
	const inner = "DELETE /v1/conversations/other HTTP/1.1\r\nHost: localhost\r\n\r\n"
	_, _ = fmt.Fprintf(conn, "POST /v1/conversations/other/messages HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", len(inner)+5, inner)
	r := bufio.NewReader(conn)
	return responseCode(t, r, conn) + ", " + responseCode(t, r, conn)
}
