// Package anthropictest is a provider of Anthropic's Messages API for tests: a real server
// on a port of its own that answers what a test has written down, in the form of the API's
// event stream, and keeps what it was asked. Begin with [New]:
//
//	fake := anthropictest.New(t, anthropictest.Text("Hel", "lo."))
//	… an agent whose base URL is fake.URL says "Hello." …
//	asked := fake.Requests()[0].JSON()
package anthropictest

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

// maxRequestBytes is how much of a request's body is kept: what the real API takes.
const maxRequestBytes = 32 << 20

// Server is the provider. All methods may be called by many goroutines at once.
type Server struct {
	// URL is the base URL of an agent: "http://127.0.0.1:PORT".
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

// New starts a provider that answers with the replies, one a request, retries included, in
// their order. It ends with the test, and with it the connections that are open then. A
// request beyond the replies is refused with status 400, and the test fails.
func New(tb testing.TB, replies ...Reply) *Server {
	tb.Helper()
	s := &Server{tb: tb, replies: replies}
	server := httptest.NewServer(s)
	tb.Cleanup(func() {
		server.CloseClientConnections() // replies that stall end with their clients
		server.Close()
	})
	s.URL = server.URL
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

// Requests returns what the server was sent so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP keeps the request and gives the next reply.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil {
		s.tb.Errorf("anthropictest: request broke off: %v", err)
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
	s.tb.Errorf("anthropictest: request %d has no reply", len(s.requests))
	return Fail(http.StatusBadRequest, Failure("invalid_request_error", "anthropictest: no reply is left"))
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
		panic("anthropictest: " + err.Error()) // a test's own mistake
	}
	return strings.TrimSuffix(b.String(), "\n")
}
