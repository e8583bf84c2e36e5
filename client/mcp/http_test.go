package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/parleyhq/parley/client"
)

// post sends a message as a client of a protocol before 2026-07-28 does.
func post(t *testing.T, server *httptest.Server, session, message string) *http.Response {
	t.Helper()
	return postAs(t, server, "2025-06-18", session, message)
}

// postAs sends a message as a client of a protocol does.
func postAs(t *testing.T, server *httptest.Server, protocol, session, message string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	request.Header.Set("Mcp-Protocol-Version", protocol)
	if session != "" {
		request.Header.Set(sessionHeader, session)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// A client of an old protocol keeps its request open and cancels by another one. Only that
// of its own session counts.
func TestCancelByNotification(t *testing.T) {
	_, c := startParley(t)
	server := httptest.NewServer(New(c, Options{}).Handler())
	t.Cleanup(server.Close)

	sessions := make([]string, 2)
	for i := range sessions {
		hello := post(t, server, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
		if sessions[i] = hello.Header.Get(sessionHeader); sessions[i] == "" || hello.StatusCode != http.StatusOK {
			t.Fatalf("initialize: %s, session %q", hello.Status, sessions[i])
		}
	}
	asked := post(t, server, sessions[0], `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask_question",
		"arguments":{"question":"think","agent":"puppet","conversation_id":"old"},"_meta":{"progressToken":1}}}`)
	lines := bufio.NewReader(asked.Body)
	for line := ""; !strings.Contains(line, "half a thou"); {
		var err error
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []struct{ session, id string }{{sessions[1], "2"}, {sessions[0], "3"}, {"", "2"}, {sessions[0], `"2"`}} {
		post(t, server, other.session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+other.id+`}}`)
	}
	// What runs still can be answered in its own session, and is not by then.
	busy := post(t, server, sessions[0], `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"clear_conversation","arguments":{"conversation_id":"old"}}}`)
	if body, err := io.ReadAll(busy.Body); err != nil || !strings.Contains(string(body), "CONVERSATION_BUSY") {
		t.Errorf("after cancelled notifications of others: %s, %v", body, err)
	}

	if accepted := post(t, server, sessions[0], `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`); accepted.StatusCode != http.StatusAccepted {
		t.Errorf("cancelled notification: %s", accepted.Status)
	}
	endsCancelled(t, c, "old")
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Errorf("the stream of the call: %v", err)
	}
}

func TestHTTPLimits(t *testing.T) {
	_, c := startParley(t)
	s := New(c, Options{})
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_conversations","arguments":{}}}`

	if response := post(t, server, "", `{"jsonrpc":"2.0","id":1,"method":"`+strings.Repeat("x", maxRequestBytes)+`"}`); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large request: %s", response.Status)
	}
	if response := post(t, server, "", "no JSON"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("no JSON: %s", response.Status)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, response.Status)
		}
	}

	for range maxCalls {
		s.calls <- struct{}{}
	}
	if body, err := io.ReadAll(post(t, server, "", list).Body); err != nil || !strings.Contains(string(body), `"code":-32603`) || !strings.Contains(string(body), "TOO_MANY_CALLS") {
		t.Errorf("one call too many: %s, %v", body, err)
	}
	<-s.calls
	for range 2 { // The place is given back.
		if body, err := io.ReadAll(post(t, server, "", list).Body); err != nil || !strings.Contains(string(body), `"total_size":0`) {
			t.Errorf("a call in the last place: %s, %v", body, err)
		}
	}
}

// The methods of undeclared capabilities are unknown, whatever their parameters.
func TestUndeclaredOverHTTP(t *testing.T) {
	c, err := client.Dial("unix:" + t.TempDir() + "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := httptest.NewServer(New(c, Options{}).Handler())
	t.Cleanup(server.Close)
	for _, call := range []string{
		`"prompts/get"`, `"prompts/list"`, `"prompts/list","params":{"cursor":5}`, `"resources/read","params":[]`, `"completion/complete"`,
		`"logging/setLevel"`, `"logging/setLevel","params":{"level":"info"}`,
	} {
		for version, want := range map[string]int{"2025-06-18": http.StatusOK, "2026-07-28": http.StatusNotFound} {
			response := postAs(t, server, version, "", `{"jsonrpc":"2.0","id":"a 7","method":`+call+`}`)
			var answer struct {
				JSONRPC, ID string
				Error       jsonrpc.Error
			}
			if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != want ||
				answer.JSONRPC != "2.0" || answer.ID != "a 7" || answer.Error.Code != jsonrpc.CodeMethodNotFound {
				t.Errorf("%s of %s = %s, %+v, %v, want %d and code %d", call, version, response.Status, answer, err, want, jsonrpc.CodeMethodNotFound)
			}
		}
	}
}

// patient is the handler with another time for each part of a large request.
func patient(t *testing.T, s *Server, pace time.Duration) *handler {
	t.Helper()
	h, ok := s.Handler().(*handler)
	if !ok {
		t.Fatal("not a handler of its own")
	}
	h.maxPace = pace
	return h
}

// TestStalledLargeRequests: those that stall lose their places to others.
func TestStalledLargeRequests(t *testing.T) {
	_, c := startParley(t)
	server := httptest.NewServer(patient(t, New(c, Options{}), time.Second))
	t.Cleanup(server.Close)
	var stalled []net.Conn
	for range maxLargeRequests {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(maxReadTime / 2)) // Before the time of a whole request is over.
		stalled = append(stalled, conn)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%*s", largeRequestBytes+10, largeRequestBytes+1, "")
	}
	for _, conn := range stalled {
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusRequestTimeout || !response.Close {
			t.Errorf("a large request that stalls: %s, close %t", response.Status, response.Close)
		}
		if err != nil || strings.Contains(string(text), "127.0.0.1") {
			t.Errorf("a large request that stalls: %q, %v, want a text without addresses", text, err)
		}
	}
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_conversations","arguments":{}}}`
	if response := post(t, server, "", list+strings.Repeat(" ", largeRequestBytes)); response.StatusCode != http.StatusOK {
		t.Errorf("a large request after them: %s", response.Status)
	}
}

// Large requests count from the time when they are read, other than those that are small.
func TestLargeRequestsAreCounted(t *testing.T) {
	_, c := startParley(t)
	h := patient(t, New(c, Options{}), time.Minute)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_conversations","arguments":{}}}`
	rest := strings.Repeat(" ", largeRequestBytes)
	var bodies []*io.PipeWriter
	answers := make(chan int, maxLargeRequests)
	for range maxLargeRequests {
		in, out := io.Pipe()
		bodies = append(bodies, out)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, in)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", "application/json, text/event-stream")
		go func() {
			response, err := server.Client().Do(request)
			if err != nil {
				t.Error(err)
				answers <- 0
				return
			}
			response.Body.Close()
			answers <- response.StatusCode
		}()
		if _, err := io.WriteString(out, list+rest+rest); err != nil {
			t.Fatal(err)
		}
	}
	// The handler may read the last bytes late. Another large request would take a place of theirs until then.
	for late := time.Now().Add(time.Minute); len(h.large) < maxLargeRequests; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatalf("%d large requests are read, want %d", len(h.large), maxLargeRequests)
		}
	}
	if response := post(t, server, "", list+rest); response.StatusCode != http.StatusTooManyRequests {
		t.Errorf("large request above the limit: %s", response.Status)
	}
	if response := post(t, server, "", list); response.StatusCode != http.StatusOK {
		t.Errorf("small request: %s", response.Status)
	}
	for _, body := range bodies {
		body.Close()
		if code := <-answers; code != http.StatusOK {
			t.Errorf("large request: %d", code)
		}
	}
	if response := post(t, server, "", list+rest); response.StatusCode != http.StatusOK {
		t.Errorf("large request after the others: %s", response.Status)
	}
}

// deadlines is a response that keeps what its writes were given.
type deadlines struct {
	*httptest.ResponseRecorder

	set []time.Time
}

// SetWriteDeadline notes t.
func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// A client that takes nothing does not hold a call for ever; and what was set for this
// response does not cut off another one of the connection.
func TestWritesAreBounded(t *testing.T) {
	_, c := startParley(t)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	before := time.Now()
	New(c, Options{}).Handler().ServeHTTP(w, request)
	if !strings.Contains(w.Body.String(), "ask_question") || !w.Flushed {
		t.Errorf("the response, flushed %t: %s", w.Flushed, w.Body)
	}
	if len(w.set) != 2 || w.set[0].Before(before.Add(maxWriteTime)) || !w.set[1].IsZero() {
		t.Errorf("deadlines %v, want one in %v, then none", w.set, maxWriteTime)
	}
}

// TestLargeWrites writes an answer that a client on a slow connection takes a minute to read: each
// part has its own deadline.
func TestLargeWrites(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	text := strings.Repeat("x", 1<<20)
	n, err := (&boundedWriter{w, http.NewResponseController(w)}).Write([]byte(text))
	if err != nil || n != len(text) || w.Body.String() != text {
		t.Errorf("Write(%d bytes) = %d, %v, and wrote %d", len(text), n, err, w.Body.Len())
	}
	if want := len(text) / writeBytes; len(w.set) != want {
		t.Errorf("%d deadlines, want %d", len(w.set), want)
	}
}

// Names of calls are no store for whoever makes them up.
func TestCallNames(t *testing.T) {
	c, cancelled := newCalls(), 0
	cancel := func() { cancelled++ }
	remove := c.add(callName{"s", "1"}, cancel)
	c.add(callName{"s", "1"}, cancel)()
	c.add(callName{"", "1"}, cancel)()
	c.add(callName{strings.Repeat("s", maxNamedBytes), "1"}, cancel)()
	if len(c.cancels) != 1 {
		t.Errorf("%d names, want 1", len(c.cancels))
	}
	c.cancel(callName{"s", "1"})
	remove()
	c.cancel(callName{"s", "1"})
	if cancelled != 1 || len(c.cancels) != 0 {
		t.Errorf("cancelled %d times, %d names left", cancelled, len(c.cancels))
	}
}
