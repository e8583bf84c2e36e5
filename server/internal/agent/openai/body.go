package openai

import (
	"errors"
	"io"
	"net/http"

	"github.com/openai/openai-go/v3/option"
)

const (
	// maxErrorBytes is how much of an answer that is not a stream is read.
	maxErrorBytes = 16 << 10
	// maxEventBytes bounds one event of the stream. Most have a few hundred bytes, but
	// gateways that do not stream themselves send the whole answer in one.
	maxEventBytes = 4 << 20
)

// errEventTooLarge ends a stream with an event that is larger than maxEventBytes.
var errEventTooLarge = errors.New("event too large")

// boundErrors cuts the body of a refusal, which the SDK reads whole.
func boundErrors(request *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	response, err := next(request)
	if err == nil && response.StatusCode >= 400 {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxErrorBytes), response.Body}
	}
	return response, err
}

// eventBody is the body of an event stream in which no event grows without end: the SDK's
// decoder bounds a line, at 32 MiB, but not the lines of an event. It also keeps the
// beginning, which tells what came in place of a stream.
type eventBody struct {
	io.ReadCloser
	head  []byte // up to maxErrorBytes
	event int    // bytes since the last blank line
	line  int    // of them since the last line feed, carriage returns aside
}

// Read reads from the body, and fails in an event that is too large.
func (b *eventBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.head = append(b.head, p[:min(n, maxErrorBytes-len(b.head))]...)
	for _, c := range p[:n] {
		b.event++
		switch c {
		case '\n':
			if b.line == 0 {
				b.event = 0
			}
			b.line = 0
		case '\r':
		default:
			b.line++
		}
		if b.event > maxEventBytes {
			return 0, errEventTooLarge
		}
	}
	return n, err
}
