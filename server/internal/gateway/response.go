package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"
)

const (
	// maxWriteTime is the maximum time to write writeBytes to a client. It equals that of the gRPC
	// server.
	maxWriteTime = 30 * time.Second
	// writeBytes is the number of bytes that one write deadline applies to. A client that reads
	// slowly has maxWriteTime for each writeBytes.
	writeBytes = 64 << 10
)

// responseWriterKey is the key of the responseWriter in the context of a request.
type responseWriterKey struct{}

// responseWriter is the response writer of a request. If the client does not read for maxWriteTime or has
// disconnected, the writer cancels the context of the request and discards all later output. It
// returns no error for that, because the gateway library would log it.
type responseWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	cancel  context.CancelFunc // Cancels the context of the request.
	lastID  string             // Last-Event-ID header of the request.
	events  bool               // The client accepts server-sent events.
	// noDeadline means that writes have no deadline. A watcher may be slow: it does not block other
	// calls, and receives a GAP.
	noDeadline    bool
	headerWritten bool         // The response header was written.
	failed        bool         // A write failed; all later output is discarded.
	replies       *replyStream // Nil if the response is not a stream.
	ids           EventIDs
}

// LimitWrites returns a handler whose responses have a limit of time: if a client does not read for 30 s, next's
// context is cancelled and its later output is discarded, without an error. Flush sends what was written.
func LimitWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		o := &responseWriter{
			ResponseWriter: w, control: http.NewResponseController(w), cancel: cancel,
			lastID: r.Header.Get(lastEventID), events: acceptsEvents(r.Header),
		}
		r = r.WithContext(context.WithValue(ctx, responseWriterKey{}, o))
		if o.events { // The mux does not parse a list of media types.
			r.Header = r.Header.Clone()
			r.Header["Accept"] = []string{mediaEvents}
		}
		next.ServeHTTP(o, r)
		o.extendDeadline() // net/http writes its buffer after the handler returns.
	})
}

// responseWriterOf returns the responseWriter of the request that ctx belongs to.
func responseWriterOf(ctx context.Context) (o *responseWriter, ok bool) {
	o, ok = ctx.Value(responseWriterKey{}).(*responseWriter)
	return o, ok
}

// responseOptions returns the mux options that let a responseWriter write the header of a stream and add ids
// to its replies.
func responseOptions() []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithDisableChunkedEncoding(), // net/http chunks when it needs to.
		runtime.WithForwardResponseOption(func(ctx context.Context, _ http.ResponseWriter, reply proto.Message) error {
			if o, ok := responseWriterOf(ctx); ok && reply == nil {
				return o.writeStreamHeader()
			}
			return nil
		}),
		runtime.WithForwardResponseRewriter(func(ctx context.Context, reply proto.Message) (any, error) {
			if o, ok := responseWriterOf(ctx); ok && o.events {
				return o.ids.withID(reply), nil
			}
			return reply, nil
		}),
	}
}

// writeStreamHeader writes the header of a stream, even if there is no reply yet. A stream of events that has
// ended without an event is answered with status 204, which stops a browser from reconnecting.
func (o *responseWriter) writeStreamHeader() error {
	h := o.Header()
	h.Set("Cache-Control", "no-store")
	if o.replies == nil {
		return nil
	}
	if o.replies.empty && o.events {
		o.WriteHeader(http.StatusNoContent)
		return nil
	}
	h.Set("Content-Type", mediaLines)
	if o.events {
		h.Set("Content-Type", mediaEvents)
	}
	h.Set("X-Accel-Buffering", "no") // A proxy must not buffer the events.
	o.WriteHeader(http.StatusOK)
	if o.replies.pending {
		o.Flush()
	}
	return nil
}

// WriteHeader writes the header once. Later calls do nothing.
func (o *responseWriter) WriteHeader(code int) {
	if !o.headerWritten {
		o.headerWritten = true
		o.ResponseWriter.WriteHeader(code)
	}
}

// Write writes p and never returns an error.
func (o *responseWriter) Write(p []byte) (int, error) {
	o.headerWritten = true
	for rest := p; len(rest) > 0; {
		step := rest[:min(len(rest), writeBytes)]
		rest = rest[len(step):]
		o.attempt(func() error {
			_, err := o.ResponseWriter.Write(step)
			return err
		})
	}
	return len(p), nil
}

// Flush sends buffered output.
func (o *responseWriter) Flush() { o.attempt(o.control.Flush) }

// attempt calls write with a new deadline. If write fails, it cancels the request.
func (o *responseWriter) attempt(write func() error) {
	if o.failed {
		return
	}
	o.extendDeadline()
	if write() != nil {
		o.failed = true
		o.cancel()
	}
}

// extendDeadline sets a new deadline for the next write. net/http resets the deadline after the response.
func (o *responseWriter) extendDeadline() {
	if !o.noDeadline {
		_ = o.control.SetWriteDeadline(time.Now().Add(maxWriteTime)) // Fails only for a writer of a test without a network.
	}
}

// Unwrap returns the wrapped writer, through which [http.ResponseController] sets deadlines.
func (o *responseWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }
