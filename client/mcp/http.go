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
	// limits the concurrent large requests. A large request counts from when more
	// than largeRequestBytes are read until it is answered; the limit of calls applies later. A
	// question is larger only if the server sets a larger --max-message-bytes.
	largeRequestBytes = 256 << 10
	maxLargeRequests  = 16
	// maxReadTime limits the time to receive a large request. From the time when it counts,
	// maxPaceTime limits the time for each paceBytes, because a stalled request blocks others.
	maxReadTime = time.Minute
	maxPaceTime = 4 * time.Second
	paceBytes   = 16 << 10
)

// Handler returns a handler for clients over streamable HTTP. It can be mounted at any path. Every request is
// independent: there are no sessions that a restart could lose, and any of several servers can
// answer the next request. A call ends with its request: a client cancels it by closing the connection.
// The limits are:
//
//   - A request has at most 4 MiB (otherwise status 413).
//   - At most 16 concurrent requests have more than 256 KiB (otherwise 429). They must arrive
//     within one minute, and each 16 KiB of them within 4 s (otherwise 408).
//   - A client must read each 64 KiB of a reply within 30 s. Otherwise its connection is closed.
//
// The calls to the Parley server have the outgoing gRPC metadata of the context of the request, for example the
// caller's credentials. If different users share the handler, mark their requests with [WithUser].
//
// Handler does not check the headers Host and Origin. The caller must refuse web pages of other origins, which a
// browser on the same machine may show.
func (s *Server) Handler() http.Handler {
	options := &sdk.StreamableHTTPOptions{
		Stateless:           true,
		MaxRequestBodyBytes: maxRequestBytes,
		// The SDK's protection would refuse hosts that the settings of the server allow.
		DisableLocalhostProtection: true,
	}
	return &handler{
		calls: newCalls(),
		large: make(chan struct{}, maxLargeRequests), maxPace: maxPaceTime,
		next: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server }, options),
	}
}

// handler is the handler that [Server.Handler] returns.
type handler struct {
	next    http.Handler
	calls   *calls
	large   chan struct{} // Contains one element for each large request.
	maxPace time.Duration // The time limit for each paceBytes of a large request.
}

// ServeHTTP adds the following to the SDK's handler: the limits of large requests, the end of calls with their
// requests, the cancellation of calls by notification, the refusal of undeclared methods regardless of
// their parameters, and the time limit of writes.
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

	caller, cancel := context.WithCancel(r.Context())
	defer cancel()
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
		remove := h.calls.add(callName{userOf(caller), session, string(m.ID)}, cancel)
		defer remove()
	case "notifications/cancelled":
		h.calls.cancel(callName{userOf(caller), session, m.cancelled()})
	}

	controller := http.NewResponseController(w)
	defer func() { _ = controller.SetWriteDeadline(time.Time{}) }() // The connection may serve other requests.
	h.next.ServeHTTP(&boundedWriter{w, controller}, r.WithContext(context.WithValue(caller, callerKey{}, caller)))
}

// refuse answers a call with an error. Since protocol 2026-07-28 the HTTP status of an unknown method is 404.
func refuse(w http.ResponseWriter, r *http.Request, id json.RawMessage, err error) {
	// This cannot fail, because id is valid JSON.
	answer, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": err})
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Mcp-Protocol-Version") >= "2026-07-28" {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = w.Write(answer)
}

// read reads a request. The caller must call end when the request has been answered.
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

// readFault returns the status and the text for a request that could not be read. The client does not get the text of
// err, because it may contain addresses.
func readFault(err error) (code int, message string) {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes; send a smaller one",
			maxRequestBytes)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, "the request was received too slowly; send it again on a faster connection"
	case errors.Is(err, errTooManyLarge):
		return http.StatusTooManyRequests, err.Error()
	default:
		return http.StatusBadRequest, "the request could not be read to its end; send it again"
	}
}

// readPaced reads the rest of a request until a deadline. Each paceBytes must arrive within pace.
func readPaced(read *bytes.Buffer, body io.Reader, controller *http.ResponseController, pace time.Duration,
	until time.Time,
) error {
	for {
		deadline := time.Now().Add(pace)
		if deadline.After(until) {
			deadline = until
		}
		_ = controller.SetReadDeadline(deadline)
		switch _, err := io.CopyN(read, body, paceBytes); {
		case errors.Is(err, io.EOF):
			// Remove the deadline, because it would also end the call.
			_ = controller.SetReadDeadline(time.Time{})
			return nil
		case err != nil:
			return err
		}
	}
}

// userKey is the context key of the user of a request.
type userKey struct{}

// WithUser returns a context for a request of a user to [Server.Handler]. A user cannot cancel the calls of another
// one, even with the id of the other one's session.
func WithUser(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

// userOf returns the user of a request, or "" if it has none.
func userOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

// callerKey is the context key of the context that ends with the HTTP request. The SDK passes the values of a context
// to the tools, but not its end.
type callerKey struct{}

// withCaller returns a context that ends with ctx, and with the HTTP request of the call if there is one. The
// caller must call cancel.
func withCaller(ctx context.Context) (callContext context.Context, cancel context.CancelFunc) {
	callContext, end := context.WithCancel(ctx)
	caller, ok := ctx.Value(callerKey{}).(context.Context)
	if !ok {
		return callContext, end
	}
	stop := context.AfterFunc(caller, end)
	return callContext, func() { stop(); end() }
}

// message contains the fields of a JSON-RPC message that handler needs.
type message struct {
	Method string          `json:"method"`
	ID     json.RawMessage `json:"id"`
	Params json.RawMessage `json:"params"`
}

// isCall reports whether the message needs a reply.
func (m message) isCall() bool { return len(m.ID) > 0 && string(m.ID) != "null" }

// cancelled returns the id of the call that a notification cancels, or "" if there is none.
func (m message) cancelled() string {
	var params struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return ""
	}
	return string(params.RequestID)
}

// readMessage decodes a message. It returns an empty one for invalid messages and batches, which the SDK handles.
func readMessage(body []byte) message {
	var m message
	if json.Unmarshal(body, &m) != nil {
		return message{}
	}
	return m
}

// boundedWriter limits the time of each writeBytes to maxWriteTime. The request fails after that time.
type boundedWriter struct {
	http.ResponseWriter

	controller *http.ResponseController
}

// Write writes p in parts, each with its own deadline.
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

// Unwrap returns the wrapped writer, which the SDK needs to flush.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
