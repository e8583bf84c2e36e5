package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// maxRefusalBytes is the maximum size of a body that is not an event stream.
	maxRefusalBytes = 64 << 10
	// maxEventBytes is the maximum size of an event. Most events have a few hundred bytes, but a
	// gateway that does not stream itself sends the complete answer in one event.
	maxEventBytes = 4 << 20
)

// errEventTooLarge is the error of a stream with an event larger than maxEventBytes.
var errEventTooLarge = fmt.Errorf("an event has more than %d bytes", maxEventBytes)

// notStreamError is the error of a body that contains no event.
type notStreamError struct{ head []byte } // The body or its beginning.

// Error returns a constant text.
func (*notStreamError) Error() string { return "the body is not an event stream" }

// Event is a server-sent event.
type Event struct {
	// Type is the name of the event. It is empty if the event has none.
	Type string
	// Data are the lines of data, joined by line feeds. They are valid until the next event.
	Data []byte
}

// Decode decodes the data, which must be a JSON object. It ignores fields of another type than
// expected: providers differ, and the types of unknown events are unknown.
func (e Event) Decode(into any) error {
	err := json.Unmarshal(e.Data, into)
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && bytes.HasPrefix(bytes.TrimSpace(e.Data), []byte("{")) {
		return nil
	}
	return err
}

// EventStream reads server-sent events with limited sizes. Use [NewEventStream] to create it.
type EventStream struct {
	body io.ReadCloser
	in   *bufio.Reader
	line []byte // The current line.
	data []byte // The data of the current event.
	size int    // Bytes of the current event, including comments and other fields.
	head []byte // The body so far. It is nil when a line with data was found.
}

// NewEventStream returns the events in body.
func NewEventStream(body io.ReadCloser) *EventStream {
	return &EventStream{body: body, in: bufio.NewReader(body), head: []byte{}}
}

// Next returns the next event that has data, or io.EOF after the last one. An event that does not end
// with an empty line is incomplete and is not returned. Next fails if an event is larger than 4 MiB, or if
// the body is not an event stream: if it ends without data, or if its first 64 KiB contain none.
func (s *EventStream) Next() (Event, error) {
	event, hasData := "", false
	s.data, s.size = s.data[:0], 0
	for {
		line, err := s.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if hasData {
				return Event{Type: event, Data: s.data}, nil
			}
			event, s.size = "", 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":")) // The name of a comment is empty.
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			event = string(value)
		case "data":
			if hasData {
				s.data = append(s.data, '\n')
			}
			s.data, hasData = append(s.data, value...), true
		}
	}
}

// Close closes the body. If the stream has not ended, that closes the connection.
func (s *EventStream) Close() { s.body.Close() }

// readLine returns the next line without its line break. The line is valid until the next call.
func (s *EventStream) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		part, err := s.in.ReadSlice('\n')
		if len(s.line) == 0 && bytes.HasPrefix(part, []byte("data:")) {
			s.head = nil
		}
		if s.head != nil {
			s.head = append(s.head, part...)
		}
		s.line = append(s.line, part...)
		s.size += len(part)
		switch {
		case s.size > maxEventBytes:
			return nil, errEventTooLarge
		case len(s.head) >= maxRefusalBytes, errors.Is(err, io.EOF) && s.head != nil:
			return nil, &notStreamError{s.head}
		case err == nil:
			return bytes.TrimSuffix(s.line[:len(s.line)-1], []byte("\r")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
