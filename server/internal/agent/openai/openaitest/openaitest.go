// Package openaitest is a provider of the chat completions API for tests: a real server on
// a port of its own that answers what a test has written down, in the very form of the
// protocol's stream, and keeps what it was asked. Begin with [New].
package openaitest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// maxRequestBytes is how much of a request's body is kept.
const maxRequestBytes = 16 << 20

// Server is the provider. All methods may be called by many goroutines at once.
type Server struct {
	// URL is the base_url of an agent: it ends in /v1.
	URL string

	tb       testing.TB
	mu       sync.Mutex
	replies  []Reply
	always   Reply // nil: nothing but the replies is expected
	requests []Request
}

// Reply answers one request. It must return when the request's context ends, which it does
// when the client has gone.
type Reply = http.HandlerFunc

// Request is one that the server was sent.
type Request struct {
	Method string
	// Path and query, as in "/v1/chat/completions?version=1".
	URI    string
	Header http.Header
	Body   []byte
}

// New starts a provider that answers with the replies, one a request, in their order. It
// ends with the test, which must have closed its agents by then. A request beyond the
// replies is refused with 400, and the test fails.
func New(tb testing.TB, replies ...Reply) *Server {
	tb.Helper()
	s := &Server{tb: tb, replies: replies}
	server := httptest.NewServer(s)
	tb.Cleanup(server.Close)
	s.URL = server.URL + "/v1"
	return s
}

// Then adds replies behind those that are still to be given.
func (s *Server) Then(replies ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies = append(s.replies, replies...)
}

// Always sets what answers each request beyond the replies.
func (s *Server) Always(reply Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = reply
}

// Requests returns what the server was sent so far, refused requests too.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// ServeHTTP keeps the request and gives the next reply.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequestBytes))
	if err != nil {
		s.tb.Errorf("openaitest: request broke off: %v", err)
	}
	s.next(Request{Method: r.Method, URI: r.RequestURI, Header: r.Header.Clone(), Body: body})(w, r)
}

func (s *Server) next(request Request) Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
	switch {
	case len(s.replies) > 0:
		reply := s.replies[0]
		s.replies = s.replies[1:]
		return reply
	case s.always != nil:
		return s.always
	}
	s.tb.Errorf("openaitest: request %d has no reply", len(s.requests))
	return Fail(http.StatusBadRequest, `{"error":{"message":"openaitest: no reply is left"}}`)
}

// JSON is the request's body, decoded as encoding/json does; nil when it is not an object.
func (r Request) JSON() map[string]any {
	var body map[string]any
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return nil
	}
	return body
}

// Messages are those of the body, as one line of JSON each with its keys in byte order.
func (r Request) Messages() []string {
	messages, ok := r.JSON()["messages"].([]any)
	if !ok {
		return nil
	}
	lines := make([]string, 0, len(messages))
	for _, message := range messages {
		lines = append(lines, encode(message))
	}
	return lines
}

// encode is the value as one line of JSON, written as it is read: without \u003c for "<".
func encode(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic("openaitest: " + err.Error()) // a test's own mistake
	}
	return strings.TrimSuffix(b.String(), "\n")
}
