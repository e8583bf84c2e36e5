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

// post sends a message like a client of a protocol before 2026-07-28.
func post(t *testing.T, server *httptest.Server, session, message string) *http.Response {
	t.Helper()
	return postAs(t, server, "2025-06-18", session, message)
}

// postAs sends a message like a client of a version of the protocol.
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

// TestCancelByNotification checks that a client of an old protocol cancels a call with another request.
// That request must be of the same session and the same user.
func TestCancelByNotification(t *testing.T) {
	_, c := startParley(t)
	handler := New(c, Options{}).Handler()
	as := func(user string) *httptest.Server {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r.WithContext(WithUser(r.Context(), user)))
		}))
		t.Cleanup(server.Close)
		return server
	}
	server, ofOther := as("someone"), as("other")

	sessions := make([]string, 2)
	for i := range sessions {
		hello := post(t, server, "",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
		if sessions[i] = hello.Header.Get(sessionHeader); sessions[i] == "" || hello.StatusCode != http.StatusOK {
			t.Fatalf("initialize = %s, session %q; want 200 and a session id", hello.Status, sessions[i])
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
		post(t, server, other.session,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+other.id+`}}`)
	}
	post(t, ofOther, sessions[0], `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	// The call is still running, so clear_conversation is refused.
	busy := post(t, server, sessions[0],
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"clear_conversation","arguments":{"conversation_id":"old"}}}`)
	if body, err := io.ReadAll(busy.Body); err != nil || !strings.Contains(string(body), "CONVERSATION_BUSY") {
		t.Errorf("clear_conversation after other notifications = %s, %v, want CONVERSATION_BUSY", body, err)
	}

	if accepted := post(t, server, sessions[0],
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`); accepted.StatusCode != http.StatusAccepted {
		t.Errorf("cancelled notification: %s, want 202", accepted.Status)
	}
	awaitCancelledTurn(t, c, "old")
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Errorf("reading the rest of the call: %v", err)
	}
}

func TestHTTPLimits(t *testing.T) {
	_, c := startParley(t)
	s := New(c, Options{})
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_conversations","arguments":{}}}`

	if response := post(t, server, "", `{"jsonrpc":"2.0","id":1,"method":"`+strings.Repeat("x", maxRequestBytes)+`"}`); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("request over the size limit: %s, want 413", response.Status)
	}
	if response := post(t, server, "", "no JSON"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("request without JSON: %s, want 400", response.Status)
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
			t.Errorf("%s: %s, want 405", method, response.Status)
		}
	}

	for range maxCalls {
		s.calls <- struct{}{}
	}
	if body, err := io.ReadAll(post(t, server, "", list).Body); err != nil ||
		!strings.Contains(string(body), `"code":-32603`) || !strings.Contains(string(body), "TOO_MANY_CALLS") {
		t.Errorf("call above the limit = %s, %v, want TOO_MANY_CALLS", body, err)
	}
	<-s.calls
	for range 2 { // The first call releases its place.
		if body, err := io.ReadAll(post(t, server, "", list).Body); err != nil ||
			!strings.Contains(string(body), `"total_size":0`) {
			t.Errorf("call at the limit = %s, %v, want a result", body, err)
		}
	}
}

// TestUndeclaredOverHTTP checks that the methods of undeclared capabilities are unknown, whatever their
// parameters.
func TestUndeclaredOverHTTP(t *testing.T) {
	c, err := client.Dial("unix:" + t.TempDir() + "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := httptest.NewServer(New(c, Options{}).Handler())
	t.Cleanup(server.Close)
	for _, call := range []string{
		`"prompts/get"`, `"prompts/list"`, `"prompts/list","params":{"cursor":5}`, `"resources/read","params":[]`,
		`"completion/complete"`,
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
				t.Errorf("%s of %s = %s, %+v, %v, want %d and code %d", call, version, response.Status, answer, err, want,
					jsonrpc.CodeMethodNotFound)
			}
		}
	}
}

// newHandler returns the handler of s with another time limit for each part of a large request.
func newHandler(t *testing.T, s *Server, pace time.Duration) *handler {
	t.Helper()
	h, ok := s.Handler().(*handler)
	if !ok {
		t.Fatal("Handler() is not a *handler")
	}
	h.maxPace = pace
	return h
}

// TestStalledLargeRequests checks that stalled large requests end and make place for others.
func TestStalledLargeRequests(t *testing.T) {
	_, c := startParley(t)
	server := httptest.NewServer(newHandler(t, New(c, Options{}), time.Second))
	t.Cleanup(server.Close)
	var stalled []net.Conn
	for range maxLargeRequests {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(maxReadTime / 2)) // The deadline is before maxReadTime.
		stalled = append(stalled, conn)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%*s", largeRequestBytes+10,
			largeRequestBytes+1, "")
	}
	for _, conn := range stalled {
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusRequestTimeout || !response.Close {
			t.Errorf("stalled large request: %s, close %t, want 408 and close", response.Status, response.Close)
		}
		if err != nil || strings.Contains(string(text), "127.0.0.1") {
			t.Errorf("stalled large request: %q, %v, want a text without addresses", text, err)
		}
	}
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_conversations","arguments":{}}}`
	if response := post(t, server, "", list+strings.Repeat(" ", largeRequestBytes)); response.StatusCode != http.StatusOK {
		t.Errorf("large request after the stalled ones: %s, want 200", response.Status)
	}
}

// TestLargeRequestsAreCounted checks that large requests count while they are read and answered. Small
// requests are not limited.
func TestLargeRequestsAreCounted(t *testing.T) {
	_, c := startParley(t)
	h := newHandler(t, New(c, Options{}), time.Minute)
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
	// The handler may read the last bytes late. Until then another large request could take a place.
	for deadline := time.Now().Add(time.Minute); len(h.large) < maxLargeRequests; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d large requests count, want %d", len(h.large), maxLargeRequests)
		}
	}
	if response := post(t, server, "", list+rest); response.StatusCode != http.StatusTooManyRequests {
		t.Errorf("large request above the limit: %s, want 429", response.Status)
	}
	if response := post(t, server, "", list); response.StatusCode != http.StatusOK {
		t.Errorf("small request: %s, want 200", response.Status)
	}
	for _, body := range bodies {
		body.Close()
		if code := <-answers; code != http.StatusOK {
			t.Errorf("large request: %d, want 200", code)
		}
	}
	if response := post(t, server, "", list+rest); response.StatusCode != http.StatusOK {
		t.Errorf("large request after the others: %s, want 200", response.Status)
	}
}

// deadlines is a response that records the write deadlines.
type deadlines struct {
	*httptest.ResponseRecorder

	set []time.Time
}

// SetWriteDeadline records t.
func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// TestWritesHaveADeadline checks that each write has a deadline, so that a client that does not read
// cannot hold a call forever. The deadline is removed at the end, so that it does not affect the next
// response of the connection.
func TestWritesHaveADeadline(t *testing.T) {
	_, c := startParley(t)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	before := time.Now()
	New(c, Options{}).Handler().ServeHTTP(w, request)
	if !strings.Contains(w.Body.String(), "ask_question") || !w.Flushed {
		t.Errorf("response, flushed %t: %s", w.Flushed, w.Body)
	}
	if len(w.set) != 2 || w.set[0].Before(before.Add(maxWriteTime)) || !w.set[1].IsZero() {
		t.Errorf("deadlines = %v, want one after %v, then none", w.set, maxWriteTime)
	}
}

// TestLargeWrites checks that each part of a large reply has its own deadline, since a client with a slow connection may
// need a minute to read it.
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

// TestCallNames checks that calls with duplicate, missing or long names are not stored.
func TestCallNames(t *testing.T) {
	c, cancelled := newCalls(), 0
	cancel := func() { cancelled++ }
	remove := c.add(callName{"u", "s", "1"}, cancel)
	c.add(callName{"u", "s", "1"}, cancel)()
	c.add(callName{"u", "", "1"}, cancel)()
	c.add(callName{"u", strings.Repeat("s", maxNamedBytes), "1"}, cancel)()
	if len(c.cancels) != 1 {
		t.Errorf("%d stored calls, want 1", len(c.cancels))
	}
	c.cancel(callName{"u", "s", "1"})
	remove()
	c.cancel(callName{"u", "s", "1"})
	if cancelled != 1 || len(c.cancels) != 0 {
		t.Errorf("cancelled %d times, %d stored calls; want 1, 0", cancelled, len(c.cancels))
	}
}
