package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	sessionHeader = "Mcp-Session-Id"
	// maxWriteTime is the time that a client has to read writeBytes.
	maxWriteTime = 30 * time.Second
	writeBytes   = 64 << 10
	// largeRequestBytes is the size in bytes above which a request is large. maxLargeRequests
	// limits the large requests at once. They count from the start of their body, before the limit
	// of calls applies. A question is larger only if the server sets a larger --max-message-bytes.
	largeRequestBytes = 256 << 10
	maxLargeRequests  = 16
	// maxReadTime is how long a large request may take to come, and maxPaceTime each paceBytes of it
	// from the time when it counts: one that stalls holds the place of another.
	maxReadTime = time.Minute
	maxPaceTime = 4 * time.Second
	paceBytes   = 16 << 10
)

// Handler serves clients over streamable HTTP, at whatever path it is mounted. Every request
// stands for itself: there are no sessions to run out of or to lose in a restart, and any of
// several servers can take the next request. A request may have 4 MiB (413 beyond), and 16 may
// have more than 256 KiB at once (429 beyond), which must come within a minute, and in 4 s for
// each 16 KiB (408 otherwise); a client that takes 30 s to read 64 KiB loses its connection; and a
// call ends with its request: to hang up is to cancel.
//
// It does not look at Host and Origin. Whoever mounts it keeps out the pages of other origins
// that a browser on the same machine may show.
func (s *Server) Handler() http.Handler {
	options := &sdk.StreamableHTTPOptions{
		Stateless:           true,
		MaxRequestBodyBytes: maxRequestBytes,
		// It would refuse hosts that the settings of the server allow.
		DisableLocalhostProtection: true,
	}
	return &handler{
		calls: newCalls(),
		large: make(chan struct{}, maxLargeRequests), maxPace: maxPaceTime,
		next: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server }, options),
	}
}

type handler struct {
	next    http.Handler
	calls   *calls
	large   chan struct{} // One for each large request.
	maxPace time.Duration // For each paceBytes of one.
}

// ServeHTTP adds to the SDK's handler that large requests are few, that calls end with their
// requests, that the notification that a call is cancelled finds it, that the methods of
// undeclared capabilities are unknown whatever their parameters, and that writes have a limit.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, end, err := h.read(w, r)
	defer end()
	if err != nil {
		code, message := readFault(err)
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		http.Error(w, message, code)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))

	caller, leave := context.WithCancel(r.Context())
	defer leave()
	session := r.Header.Get(sessionHeader)
	m := readMessage(body)
	if err := undeclared(m.Method); err != nil && r.Method == http.MethodPost && m.isCall() {
		refuse(w, r, m.ID, err)
		return
	}
	switch m.Method {
	case "initialize":
		w.Header().Set(sessionHeader, rand.Text())
	case "tools/call":
		remove := h.calls.add(callName{session, string(m.ID)}, leave)
		defer remove()
	case "notifications/cancelled":
		h.calls.cancel(callName{session, m.cancelled()})
	}

	controller := http.NewResponseController(w)
	defer func() { _ = controller.SetWriteDeadline(time.Time{}) }() // The connection is for others, too.
	h.next.ServeHTTP(&boundedWriter{w, controller}, r.WithContext(context.WithValue(caller, callerKey{}, caller)))
}

// refuse answers a call with an error. From the protocol of 2026-07-28 on, a method that is not
// found has a status of its own.
func refuse(w http.ResponseWriter, r *http.Request, id json.RawMessage, err error) {
	answer, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": err}) // It cannot fail: id was decoded.
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Mcp-Protocol-Version") >= "2026-07-28" {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = w.Write(answer)
}

// read reads a request. end is to be called when it has been answered.
func (h *handler) read(w http.ResponseWriter, r *http.Request) (request []byte, end func(), err error) {
	end = func() {}
	until := time.Now().Add(maxReadTime)
	body := http.MaxBytesReader(w, r.Body, maxRequestBytes)
	var read bytes.Buffer
	if _, err = read.ReadFrom(io.LimitReader(body, largeRequestBytes+1)); err != nil || read.Len() <= largeRequestBytes {
		return read.Bytes(), end, err
	}
	select {
	case h.large <- struct{}{}:
		end = func() { <-h.large }
	default:
		return nil, end, errTooManyLarge
	}
	err = readPaced(&read, body, http.NewResponseController(w), h.maxPace, until)
	return read.Bytes(), end, err
}

// readFault returns the status and the text for a request that could not be read. The text of the
// error has addresses, so the client does not get it.
func readFault(err error) (code int, message string) {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes; send a smaller one", maxRequestBytes)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, "the request was received too slowly; send it again on a faster connection"
	case errors.Is(err, errTooManyLarge):
		return http.StatusTooManyRequests, err.Error()
	default:
		return http.StatusBadRequest, "the request could not be read to its end; send it again"
	}
}

// readPaced reads the rest of a request that comes by a deadline, and each paceBytes of it within
// pace.
func readPaced(read *bytes.Buffer, body io.Reader, controller *http.ResponseController, pace time.Duration, until time.Time) error {
	for {
		deadline := time.Now().Add(pace)
		if deadline.After(until) {
			deadline = until
		}
		_ = controller.SetReadDeadline(deadline)
		switch _, err := io.CopyN(read, body, paceBytes); {
		case errors.Is(err, io.EOF):
			// The deadline would end the call as well.
			_ = controller.SetReadDeadline(time.Time{})
			return nil
		case err != nil:
			return err
		}
	}
}

// callerKey is of the context that ends when the client of a request has left. The SDK hands
// the values of a context down to the tools, but not its end.
type callerKey struct{}

// untilCallerLeaves returns a context that ends with ctx, and with the HTTP request behind it
// if there is one. cancel must be called.
func untilCallerLeaves(ctx context.Context) (until context.Context, cancel context.CancelFunc) {
	until, end := context.WithCancel(ctx)
	caller, ok := ctx.Value(callerKey{}).(context.Context)
	if !ok {
		return until, end
	}
	stop := context.AfterFunc(caller, end)
	return until, func() { stop(); end() }
}

// message is what has to be known of one here.
type message struct {
	Method string          `json:"method"`
	ID     json.RawMessage `json:"id"`
	Params json.RawMessage `json:"params"`
}

// isCall reports whether a message wants an answer.
func (m message) isCall() bool { return len(m.ID) > 0 && string(m.ID) != "null" }

// cancelled returns the id of the call that a notification cancels, "" if it has none.
func (m message) cancelled() string {
	var params struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return ""
	}
	return string(params.RequestID)
}

// readMessage returns an empty one for what is none, and for a batch: the SDK deals with both.
func readMessage(body []byte) message {
	var m message
	if json.Unmarshal(body, &m) != nil {
		return message{}
	}
	return m
}

// boundedWriter allows maxWriteTime for each writeBytes. The request ends when that time is over.
type boundedWriter struct {
	http.ResponseWriter

	controller *http.ResponseController
}

// Write writes in time or not at all.
func (w *boundedWriter) Write(p []byte) (written int, err error) {
	for part := range slices.Chunk(p, writeBytes) {
		_ = w.controller.SetWriteDeadline(time.Now().Add(maxWriteTime))
		n, err := w.ResponseWriter.Write(part)
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// Unwrap is for the SDK, which flushes.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
