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
	// maxRefusalBytes is the maximum size of a body that is not an event stream.
	maxRefusalBytes = 64 << 10
	// maxEventBytes is the maximum size of an event. Most events have a few hundred bytes, but a
	// gateway that does not stream itself sends the whole answer in one event.
	maxEventBytes = 4 << 20
	// maxWait is the maximum wait before a request is repeated. If a provider asks for more, the
	// error is returned at once.
	maxWait = 10 * time.Second
)

// errEventTooLarge is the error of a stream with an event larger than maxEventBytes.
var errEventTooLarge = fmt.Errorf("an event has more than %d bytes", maxEventBytes)

// notStreamError is the error of a body that contains no event.
type notStreamError struct{ head []byte } // The body or its beginning.

// Error returns a constant text.
func (*notStreamError) Error() string { return "the body is not an event stream" }

// boundedTransport limits the sizes of responses and the waits that providers ask for, since the
// code that reads the responses has no limits.
type boundedTransport struct{ *http.Transport }

// RoundTrip sends the request once.
func (b boundedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < http.StatusBadRequest {
		response.Body = &eventBody{ReadCloser: response.Body}
		return response, nil
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, maxRefusalBytes), response.Body}
	if wantsLongWait(response.Header) {
		response.Header.Set("X-Should-Retry", "false") // Both SDKs obey this header.
	}
	return response, nil
}

// wantsLongWait reports whether the provider asks for a wait of more than maxWait.
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

// eventBody is the body of an event stream with limited events, because its readers collect lines
// and events in memory. Reading also fails if the body is not an event stream: if it ends without
// an event, or if its first 64 KiB contain none.
type eventBody struct {
	io.ReadCloser
	head    []byte // The body read so far, until there is an event.
	size    int    // Bytes of the current event.
	line    int    // Bytes of the current line, without carriage returns.
	field   int    // Number of these that match the beginning of fieldName.
	hasData bool   // Data of an event was found.
}

// fieldName is the beginning of the lines with data.
const fieldName = "data:"

// Read reads from the stream. It fails if the current event is too large.
func (e *eventBody) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if !e.hasData {
		e.head = append(e.head, p[:n]...)
	}
	for _, b := range p[:n] {
		e.step(b)
		if e.size > maxEventBytes {
			return 0, errEventTooLarge
		}
	}
	if !e.hasData && (errors.Is(err, io.EOF) || len(e.head) >= maxRefusalBytes) {
		return 0, &notStreamError{e.head}
	}
	return n, err
}

func (e *eventBody) step(b byte) {
	e.size++
	switch {
	case b == '\n' && e.line == 0: // An empty line ends an event.
		e.size = 0
	case b == '\n':
		e.line, e.field = 0, 0
	case b != '\r':
		if e.field == e.line && e.line < len(fieldName) && b == fieldName[e.line] {
			e.field++
			if e.field == len(fieldName) {
				e.hasData, e.head = true, nil
			}
		}
		e.line++
	}
}
