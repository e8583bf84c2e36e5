package transport

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestTimedBodyMissing checks that a reply which does not need the body is delayed by the time limit
// of a missing body at most.
func TestTimedBodyMissing(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = newTimedBody(w, r.Body, time.Millisecond)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusNotFound {
		t.Errorf("status = %s, want 404", reply.Status)
	}
}

// TestTimedBodyComplete checks that the time limit of a body does not apply after its end. net/http
// would treat a passed deadline as a disconnected client.
func TestTimedBodyComplete(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const limit = 100 * time.Millisecond
		r.Body = newTimedBody(w, r.Body, limit)
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Error("the request's context ended with the time limit of its body")
		case <-time.After(2 * limit):
		}
	}))
	t.Cleanup(s.Close)
	reply, err := s.Client().Post(s.URL, "", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
}

// TestLogPanic checks that a handler's panic is logged at level error, with its stack, and ends only
// its request.
func TestLogPanic(t *testing.T) {
	var lines bytes.Buffer
	h := &httpServer{log: slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelError}))}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		defer func() { h.logPanic(r, recover()) }()
		panic("a fault")
	}))
	if reply, err := s.Client().Get(s.URL + "/v1/stats"); err == nil {
		reply.Body.Close()
		t.Errorf("Get() after a panic = %s, want an error", reply.Status)
	}
	s.Close()
	for _, want := range []string{"a fault", "path=/v1/stats", "TestLogPanic"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("log = %q, want %q in it", lines.String(), want)
		}
	}
}
