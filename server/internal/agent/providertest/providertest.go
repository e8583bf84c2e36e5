// Package providertest is a provider of a model for tests: a real server on a port of its
// own that answers what a test has written down, and keeps what it was asked. It knows no
// protocol but JSON and streams of events; openaitest and anthropictest have the words of
// theirs. Begin with [New].
package providertest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// maxRequestBytes is how much of a request's body is kept: what the largest API takes.
const maxRequestBytes = 32 << 20

// Server is the provider. All methods may be called by many goroutines at once.
type Server struct {
	// URL is the base URL of an agent, as New was told to make it.
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
	// URI is path and query, as in "/v1/messages?version=1".
	URI    string
	Header http.Header
	Body   []byte
}

// New starts a provider whose URL ends in the path, which may be empty. It answers with the
// replies, one a request, retries included, in their order. It ends with the test, and with
// it the connections that are open then. A request beyond the replies is refused with
// status 400, and the test fails.
func New(tb testing.TB, path string, replies ...Reply) *Server {
	tb.Helper()
	s := &Server{tb: tb, replies: replies}
	server := httptest.NewServer(s)
	tb.Cleanup(func() {
		server.CloseClientConnections() // replies that stall end with their clients
		server.Close()
	})
	s.URL = server.URL + path
	return s
}

// Then adds replies behind those that are still to be given.
func (s *Server) Then(replies ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies = append(slices.Clip(s.replies), replies...)
}

// Always sets what answers each request beyond the replies.
func (s *Server) Always(reply Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = reply
}

// Requests returns what the server was sent so far, oldest first, refused requests too.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP keeps the request and gives the next reply.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil {
		s.tb.Errorf("providertest: request broke off: %v", err)
		return
	}
	s.next(Request{Method: r.Method, URI: r.RequestURI, Header: r.Header.Clone(), Body: body})(w, r)
}

// next keeps the request and takes the reply to it.
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
	s.tb.Errorf("providertest: request %d has no reply", len(s.requests))
	return Fail(http.StatusBadRequest, `{"error":{"type":"invalid_request_error","message":"providertest: no reply is left"}}`)
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
		lines = append(lines, JSON(message))
	}
	return lines
}

// JSON is the value as one line, written as it is read: without \u003c for "<". It panics
// when that cannot be.
func JSON(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic("providertest: " + err.Error()) // a test's own mistake
	}
	return strings.TrimSuffix(b.String(), "\n")
}
