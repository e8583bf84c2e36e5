// Package providertest is a fake model provider for tests: an HTTP server that sends scripted
// replies and records its requests. It supports JSON and event streams in general; openaitest and
// anthropictest have the replies of the two APIs. Start at [New].
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

// maxRequestBytes is the maximum size of a request body: the largest limit of the APIs.
const maxRequestBytes = 32 << 20

// Server is the provider. All methods are safe for concurrent use.
type Server struct {
	// URL is the base URL for an agent, with the path that was passed to New.
	URL string

	tb       testing.TB
	mu       sync.Mutex
	replies  []Reply
	always   Reply // If nil, a request without a reply fails the test.
	requests []Request
}

// Reply answers one request. It must return when the context of the request ends, which happens
// when the client disconnects.
type Reply = http.HandlerFunc

// Request is a request that the server received.
type Request struct {
	Method string
	// URI is the path and query, for example "/v1/messages?version=1".
	URI    string
	Header http.Header
	Body   []byte
}

// New starts a provider whose URL ends in path, which may be empty. Each request, including a
// retry, gets the next reply. The server and its open connections are closed at the end of the
// test. If no reply is left, the request is refused with status 400 and the test fails.
func New(tb testing.TB, path string, replies ...Reply) *Server {
	tb.Helper()
	s := &Server{tb: tb, replies: replies}
	server := httptest.NewServer(s)
	tb.Cleanup(func() {
		server.CloseClientConnections() // Ends the replies that stall.
		server.Close()
	})
	s.URL = server.URL + path
	return s
}

// Then adds replies after those that are left.
func (s *Server) Then(replies ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies = append(slices.Clip(s.replies), replies...)
}

// Always sets the reply to each request for which no other reply is left.
func (s *Server) Always(reply Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = reply
}

// Requests returns the requests received so far, oldest first. Refused requests are included.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP records the request and sends the next reply.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil {
		s.tb.Errorf("providertest: reading the request: %v", err)
		return
	}
	s.next(Request{Method: r.Method, URI: r.RequestURI, Header: r.Header.Clone(), Body: body})(w, r)
}

// next records the request and returns its reply.
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
	return Fail(http.StatusBadRequest,
		`{"error":{"type":"invalid_request_error","message":"providertest: no reply is left"}}`)
}

// JSON returns the decoded body, or nil if it is not an object.
func (r Request) JSON() map[string]any {
	var body map[string]any
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return nil
	}
	return body
}

// Messages returns the messages in the body, each as one line of JSON with its keys in byte order.
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

// JSON returns the value as one line that does not escape "<". It panics if the value cannot be
// encoded.
func JSON(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic("providertest: " + err.Error()) // The test passed an invalid value.
	}
	return strings.TrimSuffix(b.String(), "\n")
}
