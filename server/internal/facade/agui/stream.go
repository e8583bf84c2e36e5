package agui

import (
	"bytes"
	"encoding/json"
	"net/http"

	"google.golang.org/grpc/status"
)

// stream writes the response of a request as server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool // The header was written.
	buffer  bytes.Buffer
}

// add adds an event. If id is empty, the event has none.
func (s *stream) add(event any, id string) {
	text, err := json.Marshal(event)
	if err != nil {
		return // It cannot be: all values come from JSON or are UTF-8.
	}
	if id != "" {
		s.buffer.WriteString("id: ")
		s.buffer.WriteString(id)
		s.buffer.WriteByte('\n')
	}
	s.buffer.WriteString("data: ")
	s.buffer.Write(text)
	s.buffer.WriteString("\n\n")
}

// addComment adds a comment, which shows a client that the stream is alive.
func (s *stream) addComment() { s.buffer.WriteString(":\n\n") }

// flush sends what was added.
func (s *stream) flush() {
	if s.buffer.Len() == 0 {
		return
	}
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // A proxy must not buffer the events.
		s.w.WriteHeader(http.StatusOK)
	}
	_, _ = s.w.Write(s.buffer.Bytes()) // The writer cancels the request if the client does not read.
	_ = s.control.Flush()
	s.buffer.Reset()
}

// fail ends a stream that has begun with an error of the call. The run may continue, so the event has no id.
func (s *stream) fail(st *status.Status) {
	s.add(failureOf(st), "")
	s.flush()
}
