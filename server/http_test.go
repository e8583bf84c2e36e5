package main

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

// A body that never comes holds up an answer that does not need it for its time, and no longer.
func TestBodyThatNeverComes(t *testing.T) {
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
		t.Errorf("got %s", reply.Status)
	}
}

// A body that has come takes no time from what the request does after that: the end of a
// deadline on its connection would be taken for the client's leaving.
func TestBodyThatHasCome(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const within = 100 * time.Millisecond
		r.Body = newTimedBody(w, r.Body, within)
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Error("the request ended with the time of its body")
		case <-time.After(2 * within):
		}
	}))
	t.Cleanup(s.Close)
	reply, err := s.Client().Post(s.URL, "", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
}

// A fault of ours is in the log whatever its level, with the place, and costs one request.
func TestPanicOverHTTP(t *testing.T) {
	var lines bytes.Buffer
	d := &httpDoor{log: slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelError}))}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		defer func() { d.logPanic(r, recover()) }()
		panic("a fault")
	}))
	if reply, err := s.Client().Get(s.URL + "/v1/stats"); err == nil {
		reply.Body.Close()
		t.Errorf("got %s", reply.Status)
	}
	s.Close()
	for _, word := range []string{"a fault", "path=/v1/stats", "TestPanicOverHTTP"} {
		if !strings.Contains(lines.String(), word) {
			t.Errorf("%q is not in the log: %s", word, lines.String())
		}
	}
}
