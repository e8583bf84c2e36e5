package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	// maxRefusalBytes is how much is read of what is no stream.
	maxRefusalBytes = 64 << 10
	// maxEventBytes bounds one event of a stream. Most have a few hundred bytes, but
	// gateways that do not stream themselves send the whole answer in one.
	maxEventBytes = 4 << 20
	// maxWait is the longest that a request waits to be made again. A provider that wants
	// a longer one is told of at once.
	maxWait = 10 * time.Second
)

// errEventTooLarge ends a stream with an event that is larger than maxEventBytes.
var errEventTooLarge = fmt.Errorf("an event has more than %d bytes", maxEventBytes)

// notStreamError ends a body that has no event.
type notStreamError struct{ head []byte } // all of it, or its beginning

// Error says so.
func (*notStreamError) Error() string { return "the body is no stream of events" }

// bounded keeps responses to sizes and waits for which the clients that read them have no
// bounds, or other ones.
type bounded struct{ *http.Transport }

// RoundTrip sends the request once.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < http.StatusBadRequest {
		response.Body = &events{ReadCloser: response.Body}
		return response, nil
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, maxRefusalBytes), response.Body}
	if wantsLongWait(response.Header) {
		response.Header.Set("X-Should-Retry", "false") // as both SDKs understand
	}
	return response, nil
}

// wantsLongWait reports whether nobody is to try again before maxWait is over.
func wantsLongWait(header http.Header) bool {
	if n, err := strconv.ParseFloat(header.Get("Retry-After-Ms"), 64); err == nil {
		return n > float64(maxWait.Milliseconds())
	}
	after := header.Get("Retry-After")
	if n, err := strconv.ParseFloat(after, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return n > maxWait.Seconds()
	}
	at, err := http.ParseTime(after)
	return err == nil && time.Until(at) > maxWait
}

// events is the body of a stream of events in which none grows without end: those who read
// it gather lines and events in memory. It fails as well where it is no such stream: it ends
// without an event, or its first 64 KiB have none.
type events struct {
	io.ReadCloser
	head  []byte // all, as long as there is no event
	size  int    // of the event so far
	line  int    // bytes of its line so far, without carriage returns
	field int    // how many of them are the beginning of fieldName
	some  bool   // there was data of an event
}

// fieldName is what the lines of an event that count begin with.
const fieldName = "data:"

// Read reads on, in an event that is not too large yet.
func (e *events) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if !e.some {
		e.head = append(e.head, p[:n]...)
	}
	for _, b := range p[:n] {
		e.step(b)
		if e.size > maxEventBytes {
			return 0, errEventTooLarge
		}
	}
	if !e.some && (errors.Is(err, io.EOF) || len(e.head) >= maxRefusalBytes) {
		return 0, &notStreamError{e.head}
	}
	return n, err
}

func (e *events) step(b byte) {
	e.size++
	switch {
	case b == '\n' && e.line == 0: // an empty line ends an event
		e.size = 0
	case b == '\n':
		e.line, e.field = 0, 0
	case b != '\r':
		if e.field == e.line && e.line < len(fieldName) && b == fieldName[e.line] {
			e.field++
			if e.field == len(fieldName) {
				e.some, e.head = true, nil
			}
		}
		e.line++
	}
}
