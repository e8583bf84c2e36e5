package anthropic

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	// maxErrorBytes is how much of a refusal is read.
	maxErrorBytes = 64 << 10

	// maxEventBytes is the most bytes of one event of a stream.
	maxEventBytes = 1 << 20

	// maxWait is the longest that a request waits to be made again. A provider that wants
	// a longer one is told to the caller at once.
	maxWait = 10 * time.Second
)

// errEventTooLarge ends a stream with an event that is larger than maxEventBytes.
var errEventTooLarge = fmt.Errorf("an event has more than %d bytes", maxEventBytes)

// newTransport has connections of its own, so that Close can end them, and no proxy, which
// would be one of the environment's. Tries that do not get through end well within the time
// that a turn may be silent.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // compressed streams come in bursts

		MaxResponseHeaderBytes: 64 << 10,
	}
}

// bounded keeps responses to sizes and waits that the client, which reads them, has no
// bounds for.
type bounded struct{ *http.Transport }

// RoundTrip sends the request once.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		response.Body = &body{io.LimitReader(response.Body, maxErrorBytes), response.Body}
		if wantedWait(response.Header) > maxWait {
			response.Header.Set("X-Should-Retry", "false")
		}
	} else {
		response.Body = &body{&events{stream: response.Body}, response.Body}
	}
	return response, nil
}

// wantedWait is how long the provider wants nobody to try again; 0 where it does not say.
func wantedWait(header http.Header) time.Duration {
	if n, err := strconv.ParseFloat(header.Get("Retry-After-Ms"), 64); err == nil {
		return time.Duration(min(n, 1e9) * float64(time.Millisecond))
	}
	if n, err := strconv.ParseFloat(header.Get("Retry-After"), 64); err == nil {
		return time.Duration(min(n, 1e6) * float64(time.Second))
	}
	if at, err := http.ParseTime(header.Get("Retry-After")); err == nil {
		return time.Until(at)
	}
	return 0
}

// body is one that is read through a bound.
type body struct {
	io.Reader
	io.Closer
}

// events reads a stream of events, and fails on one that is too large: lines or events
// without an end would be gathered in memory.
type events struct {
	stream io.Reader
	size   int  // of the event so far
	inLine bool // the line so far has something in it
}

// Read reads on, in an event that is not too large yet.
func (e *events) Read(p []byte) (int, error) {
	n, err := e.stream.Read(p)
	for _, b := range p[:n] {
		e.size++
		switch {
		case b == '\n' && !e.inLine: // an empty line ends an event
			e.size = 0
		case b == '\n':
			e.inLine = false
		case b != '\r':
			e.inLine = true
		}
		if e.size > maxEventBytes {
			return 0, errEventTooLarge
		}
	}
	return n, err
}
