package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"
)

const (
	// maxWriteTime is how long a client may take nothing of what is sent to it, as over gRPC.
	maxWriteTime = 30 * time.Second
	// writeBytes is what a client that reads slowly has maxWriteTime for, again and again.
	writeBytes = 64 << 10
)

// outletKey is where a request's context has its outlet.
type outletKey struct{}

// outlet is the way out for what is sent to one client. When that takes nothing for
// maxWriteTime, or has gone, the request's context ends and all else that is written is
// dropped: an error would be one for the log of a library.
type outlet struct {
	http.ResponseWriter
	control *http.ResponseController
	leave   context.CancelFunc // Ends the context.
	lastID  string             // The client's Last-Event-ID.
	events  bool               // The client wants server-sent events.
	// patient says that writes wait as long as the network does. A watcher may be slow: it
	// holds nothing up, and gets a GAP.
	patient bool
	begun   bool     // The header has been written.
	broken  bool     // Nothing can be written any more.
	replies *replies // Nil: what is sent is no stream.
	ids     eventIDs
}

// withOutlet gives every request its outlet. It must be outside of the mux, and its options
// be outletOptions.
func withOutlet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, leave := context.WithCancel(r.Context())
		defer leave()
		o := &outlet{
			ResponseWriter: w, control: http.NewResponseController(w), leave: leave,
			lastID: r.Header.Get(lastEventID), events: acceptsEvents(r.Header),
		}
		r = r.WithContext(context.WithValue(ctx, outletKey{}, o))
		if o.events { // The mux knows no lists.
			r.Header = r.Header.Clone()
			r.Header["Accept"] = []string{mediaEvents}
		}
		next.ServeHTTP(o, r)
		o.renew() // What is left goes out now.
	})
}

// outletOf returns the outlet of the request that a context belongs to.
func outletOf(ctx context.Context) (o *outlet, ok bool) {
	o, ok = ctx.Value(outletKey{}).(*outlet)
	return o, ok
}

// outletOptions have the mux begin and number streams as their outlets need it.
func outletOptions() []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithDisableChunkedEncoding(), // net/http knows better when.
		runtime.WithForwardResponseOption(func(ctx context.Context, _ http.ResponseWriter, reply proto.Message) error {
			if o, ok := outletOf(ctx); ok && reply == nil {
				return o.begin()
			}
			return nil
		}),
		runtime.WithForwardResponseRewriter(func(ctx context.Context, reply proto.Message) (any, error) {
			if o, ok := outletOf(ctx); ok && o.events {
				return o.ids.number(reply), nil
			}
			return reply, nil
		}),
	}
}

// begin sends the header of a stream that stands, even if it says nothing for now. A stream
// of events that has nothing to say at all ends with 204: a browser then asks no more.
func (o *outlet) begin() error {
	h := o.Header()
	h.Set("Cache-Control", "no-store")
	if o.replies == nil {
		return nil
	}
	if o.replies.none && o.events {
		o.WriteHeader(http.StatusNoContent)
		return nil
	}
	h.Set("Content-Type", mediaLines)
	if o.events {
		h.Set("Content-Type", mediaEvents)
	}
	h.Set("X-Accel-Buffering", "no") // A proxy is not to wait for more.
	o.WriteHeader(http.StatusOK)
	if o.replies.late {
		o.Flush()
	}
	return nil
}

// WriteHeader writes the first header, and no other.
func (o *outlet) WriteHeader(code int) {
	if !o.begun {
		o.begun = true
		o.ResponseWriter.WriteHeader(code)
	}
}

// Write writes, and never fails.
func (o *outlet) Write(p []byte) (int, error) {
	o.begun = true
	for rest := p; len(rest) > 0; {
		step := rest[:min(len(rest), writeBytes)]
		rest = rest[len(step):]
		o.try(func() error {
			_, err := o.ResponseWriter.Write(step)
			return err
		})
	}
	return len(p), nil
}

// Flush sends what has been written.
func (o *outlet) Flush() { o.try(o.control.Flush) }

// try writes something in its time.
func (o *outlet) try(write func() error) {
	if o.broken {
		return
	}
	o.renew()
	if write() != nil {
		o.broken = true
		o.leave()
	}
}

// renew gives the next write its time. net/http takes it back behind the answer.
func (o *outlet) renew() {
	if !o.patient {
		_ = o.control.SetWriteDeadline(time.Now().Add(maxWriteTime)) // In vain only for writers without a network.
	}
}

// Unwrap lets deadlines be set.
func (o *outlet) Unwrap() http.ResponseWriter { return o.ResponseWriter }
